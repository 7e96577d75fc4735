#include "needle/ops/reduce.h"

#include "needle/ops/elementwise.h"
#include "needle/ops/shape.h"

namespace needle {

namespace {

struct SumOp final : Op {
  SumOp(Axes over, bool keeps) : axes(std::move(over)), keep(keeps) {}
  Axes axes;
  bool keep;
  const char* name() const override { return "sum"; }
  NDArrays compute(const NDArrays& inputs) override { return {reduce(Sum{}, inputs[0], axes, keep)}; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    const Shape& shape = saved.input_shape(0);
    return {broadcast_to(reshape(g[0], reduced_shape("sum", shape, axes, true)), shape)};
  }
  double operations(std::span<const NDArray> inputs, std::span<const NDArray>) const override {
    return static_cast<double>(inputs[0].count());
  }
};

struct ExtremeOp final : Op {
  ExtremeOp(ReduceOp which, Axes over, bool keeps) : op(which), axes(std::move(over)), keep(keeps) {}
  ReduceOp op;
  Axes axes;
  bool keep;
  const char* name() const override { return std::holds_alternative<Max>(op) ? "max" : "min"; }
  Reads reads() const override { return {1, 1}; }
  NDArrays compute(const NDArrays& inputs) override { return {reduce(op, inputs[0], axes, keep)}; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    const Shape kept = reduced_shape(name(), saved.input_shape(0), axes, true);
    const NDArray chosen =
        binary(Equal{}, saved.input_array(0), saved.output_array(0).reshape(kept)).cast(g[0].dtype());
    const NDArray share = binary(Divide{}, chosen, reduce(Sum{}, chosen, axes, true));
    return {reshape(g[0], kept) * Tensor(share)};
  }
};

struct CumulativeSumOp final : Op {
  explicit CumulativeSumOp(int along) : axis(along) {}
  int axis;
  const char* name() const override { return "cumulative_sum"; }
  NDArrays compute(const NDArrays& inputs) override {
    const NDArray y = NDArray::empty(inputs[0].shape(), inputs[0].dtype(), inputs[0].device());
    y.device()->cumulative_sum(inputs[0].view(), axis, y.view());
    return {y};
  }
  Tensors gradient(const Tensors& g, const Saved&, const Needs&) override {
    return {flip(cumulative_sum(flip(g[0], {axis}), axis), {axis})};
  }
};

double reduced_count(const Tensor& x, const Axes& axes, const char* name) {
  return static_cast<double>(x.array().count()) /
         static_cast<double>(reduced_shape(name, x.shape(), axes, true).count());
}

}  // namespace

Tensor sum(const Tensor& x, const Axes& axes, bool keep) { return apply_op<SumOp>({x}, axes, keep); }

Tensor mean(const Tensor& x, const Axes& axes, bool keep) {
  return sum(x, axes, keep) / reduced_count(x, axes, "mean");
}

Tensor variance(const Tensor& x, const Axes& axes, bool keep, double correction) {
  const Tensor centered = x - mean(x, axes, true);
  return sum(centered * centered, axes, keep) / (reduced_count(x, axes, "variance") - correction);
}

Tensor max(const Tensor& x, const Axes& axes, bool keep) {
  return apply_op<ExtremeOp>({x}, Max{}, axes, keep);
}
Tensor min(const Tensor& x, const Axes& axes, bool keep) {
  return apply_op<ExtremeOp>({x}, Min{}, axes, keep);
}

Tensor logsumexp(const Tensor& x, const Axes& axes, bool keep) {
  // Shifted by the maximum, which cancels in the result; an infinite one would give infinity minus infinity.
  const Tensor largest = max(x, axes, true).detach(),
               infinite = constant_like(x, std::numeric_limits<double>::infinity());
  const Tensor shift = where(equal(abs(largest), infinite), constant_like(x, 0), largest);
  return log(sum(exp(x - shift), axes, keep)) +
         reshape(shift, reduced_shape("logsumexp", x.shape(), axes, keep));
}

Tensor cumulative_sum(const Tensor& x, int axis) {
  return apply_op<CumulativeSumOp>({x}, normalized_axis("cumulative_sum", axis, x.rank()));
}

NDArray argmax(const NDArray& x, int axis) {
  axis = normalized_axis("argmax", axis, x.rank());
  const NDArray last = x.rank() == 0 ? x.unsqueeze(0) : x.transpose(axis, -1);
  require(last.size(-1) > 0, "argmax: axis ", axis, " of ", x.shape(), " is empty");
  Shape shape = last.shape();
  shape.erase(shape.rank() - 1);
  const NDArray y = NDArray::empty(shape, DType::i64, x.device());
  x.device()->argmax(last.view(), y.view());
  // The axes that stood behind `axis` were swapped with it: put the one that came to its place back to the
  // end.
  if (x.rank() < 2 || axis == x.rank() - 1) return y;
  std::vector<int> order;
  for (int i = 0; i < y.rank(); ++i) {
    if (i != axis) order.push_back(i);
  }
  order.push_back(axis);
  return y.permute(order);
}

std::pair<NDArray, NDArray> top_k(const NDArray& x, std::int64_t k) {
  require(x.rank() > 0 && k >= 0 && k <= x.size(-1), "top_k: k = ", k, " does not fit the last axis of ",
          x.shape());
  Shape shape = x.shape();
  shape[shape.rank() - 1] = k;
  const NDArray values = NDArray::empty(shape, x.dtype(), x.device());
  const NDArray indices = NDArray::empty(shape, DType::i64, x.device());
  x.device()->top_k(x.view(), values.view(), indices.view());
  return {values, indices};
}

}  // namespace needle
