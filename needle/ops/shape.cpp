#include "needle/ops/shape.h"

#include "needle/ops/elementwise.h"
#include "needle/ops/reduce.h"

namespace needle {

namespace {

struct ViewOp : Op {
  double operations(std::span<const NDArray>, std::span<const NDArray>) const override { return 0; }
};

struct ReshapeOp final : ViewOp {
  explicit ReshapeOp(const Shape& to) : shape(to) {}
  Shape shape;
  const char* name() const override { return "reshape"; }
  NDArrays compute(const NDArrays& inputs) override { return {inputs[0].reshape(shape)}; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    return {reshape(g[0], saved.input_shape(0))};
  }
};

struct PermuteOp final : ViewOp {
  explicit PermuteOp(std::vector<int> by) : axes(std::move(by)) {}
  std::vector<int> axes;
  const char* name() const override { return "permute"; }
  NDArrays compute(const NDArrays& inputs) override { return {inputs[0].permute(axes)}; }
  Tensors gradient(const Tensors& g, const Saved&, const Needs&) override {
    std::vector<int> inverse(axes.size());
    for (std::size_t to = 0; to < axes.size(); ++to) {
      const int rank = static_cast<int>(axes.size());
      inverse[static_cast<std::size_t>((axes[to] + rank) % rank)] = static_cast<int>(to);
    }
    return {permute(g[0], inverse)};
  }
};

struct BroadcastToOp final : ViewOp {
  explicit BroadcastToOp(const Shape& to) : shape(to) {}
  Shape shape;
  const char* name() const override { return "broadcast_to"; }
  NDArrays compute(const NDArrays& inputs) override { return {inputs[0].broadcast_to(shape)}; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    const Shape& from = saved.input_shape(0);
    const int extra = shape.rank() - from.rank();
    Axes axes;
    for (int axis = 0; axis < shape.rank(); ++axis) {
      if (axis < extra || (from[axis - extra] == 1 && shape[axis] != 1)) axes.push_back(axis);
    }
    return {reshape(axes.empty() ? g[0] : sum(g[0], axes), from)};
  }
};

/// The place of a slice: what slice, unslice and pad share.
struct Range {
  int axis;
  std::int64_t start, stop, step;
  NDArray of(const NDArray& x) const { return x.slice(axis, start, stop, step); }
};

struct SliceOp final : ViewOp {
  explicit SliceOp(const Range& at) : range(at) {}
  Range range;
  const char* name() const override { return "slice"; }
  NDArrays compute(const NDArrays& inputs) override { return {range.of(inputs[0])}; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    return {unslice(g[0], saved.input_shape(0), range.axis, range.start, range.stop, range.step)};
  }
  void add_gradient(NDArrays out_grads, const Saved&, GradientSums& into) override {
    bool first = false;
    NDArray& sum = into.sum(0, first);
    if (first) sum.device()->fill(0, sum.view());
    NDArray place = range.of(sum);
    add_into(out_grads[0], place);
  }
};

struct UnsliceOp final : Op {
  UnsliceOp(const Shape& to, const Range& at) : shape(to), range(at) {}
  Shape shape;
  Range range;
  const char* name() const override { return "unslice"; }
  NDArrays compute(const NDArrays& inputs) override {
    const NDArray result = NDArray::zeros(shape, inputs[0].dtype(), inputs[0].device());
    range.of(result).assign(inputs[0]);
    return {result};
  }
  Tensors gradient(const Tensors& g, const Saved&, const Needs&) override {
    return {slice(g[0], range.axis, range.start, range.stop, range.step)};
  }
};

struct FlipOp final : ViewOp {
  explicit FlipOp(Axes over) : axes(std::move(over)) {}
  Axes axes;
  const char* name() const override { return "flip"; }
  NDArrays compute(const NDArrays& inputs) override { return {inputs[0].flip(axes)}; }
  Tensors gradient(const Tensors& g, const Saved&, const Needs&) override { return {flip(g[0], axes)}; }
};

struct ConcatenateOp final : Op {
  explicit ConcatenateOp(int along) : axis(along) {}
  int axis;
  const char* name() const override { return "concatenate"; }
  NDArrays compute(const NDArrays& inputs) override {
    Shape shape = inputs[0].shape();
    shape[axis] = 0;
    for (const NDArray& x : inputs) shape[axis] += x.shape()[axis];
    const NDArray result = NDArray::empty(shape, inputs[0].dtype(), inputs[0].device());
    std::int64_t start = 0;
    for (const NDArray& x : inputs) {
      result.device()->copy(x.view(), result.slice(axis, start, start + x.shape()[axis]).view());
      start += x.shape()[axis];
    }
    return {result};
  }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    std::vector<std::int64_t> sizes;
    for (int i = 0; i < saved.input_count(); ++i) sizes.push_back(saved.input_shape(i)[axis]);
    return split(g[0], sizes, axis);
  }
};

struct SplitOp final : ViewOp {
  SplitOp(std::vector<std::int64_t> into, int along) : sizes(std::move(into)), axis(along) {}
  std::vector<std::int64_t> sizes;
  int axis;
  const char* name() const override { return "split"; }
  NDArrays compute(const NDArrays& inputs) override {
    NDArrays parts;
    std::int64_t start = 0;
    for (const std::int64_t size : sizes) {
      parts.push_back(inputs[0].slice(axis, start, start + size));
      start += size;
    }
    return parts;
  }
  Tensors gradient(const Tensors& g, const Saved&, const Needs&) override { return {concatenate(g, axis)}; }
};

struct PadOp final : Op {
  PadOp(std::vector<std::pair<std::int64_t, std::int64_t>> by, double with)
      : widths(std::move(by)), value(with) {}
  std::vector<std::pair<std::int64_t, std::int64_t>> widths;
  double value;
  const char* name() const override { return "pad"; }
  NDArrays compute(const NDArrays& inputs) override {
    const NDArray& x = inputs[0];
    Shape shape = x.shape();
    for (int axis = 0; axis < shape.rank(); ++axis) shape[axis] += before(axis) + widths[index(axis)].second;
    const NDArray result = NDArray::full(shape, value, x.dtype(), x.device());
    NDArray place = result;
    for (int axis = 0; axis < shape.rank(); ++axis)
      place = place.slice(axis, before(axis), before(axis) + x.shape()[axis]);
    place.assign(x);
    return {result};
  }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    Tensor inner = g[0];
    for (int axis = 0; axis < inner.rank(); ++axis) {
      inner = slice(inner, axis, before(axis), before(axis) + saved.input_shape(0)[axis]);
    }
    return {inner};
  }

 private:
  static std::size_t index(int axis) { return static_cast<std::size_t>(axis); }
  std::int64_t before(int axis) const { return widths[index(axis)].first; }
};

/// true where column - row <= diagonal.
Tensor below_diagonal(const Tensor& x, std::int64_t diagonal) {
  require(x.rank() >= 2, "triangle: wants at least two axes, got ", x.shape());
  const auto counted = [&](int axis, std::int64_t start) {
    return NDArray::arange(x.size(axis), DType::i64, x.device(), static_cast<double>(start));
  };
  return Tensor(binary(LessEqual{}, counted(-1, 0).unsqueeze(0), counted(-2, diagonal).unsqueeze(1)));
}

}  // namespace

Tensor reshape(const Tensor& x, const Shape& shape) {
  return x.shape() == shape ? x : apply_op<ReshapeOp>({x}, shape);
}
Tensor permute(const Tensor& x, const std::vector<int>& axes) { return apply_op<PermuteOp>({x}, axes); }

Tensor transpose(const Tensor& x, int axis_a, int axis_b) {
  if (x.rank() == 0) return x;
  std::vector<int> axes;
  for (int axis = 0; axis < x.rank(); ++axis) axes.push_back(axis);
  std::swap(axes[static_cast<std::size_t>(normalized_axis("transpose", axis_a, x.rank()))],
            axes[static_cast<std::size_t>(normalized_axis("transpose", axis_b, x.rank()))]);
  return permute(x, axes);
}

Tensor broadcast_to(const Tensor& x, const Shape& shape) {
  return x.shape() == shape ? x : apply_op<BroadcastToOp>({x}, shape);
}

Tensor slice(const Tensor& x, int axis, std::int64_t start, std::int64_t stop, std::int64_t step) {
  axis = normalized_axis("slice", axis, x.rank());
  if (step == 1 && x.rank() > 0 && start == 0 && stop == x.shape()[axis]) return x;
  return apply_op<SliceOp>({x}, Range{axis, start, stop, step});
}

Tensor unslice(const Tensor& x, const Shape& shape, int axis, std::int64_t start, std::int64_t stop,
               std::int64_t step) {
  return apply_op<UnsliceOp>({x}, shape, Range{axis, start, stop, step});
}

Tensor flip(const Tensor& x, const Axes& axes) { return apply_op<FlipOp>({x}, axes); }

Tensor unsqueeze(const Tensor& x, int axis) {
  Shape shape = x.shape();
  shape.insert(normalized_axis("unsqueeze", axis, x.rank() + 1), 1);
  return reshape(x, shape);
}

Tensor squeeze(const Tensor& x, int axis) { return reshape(x, x.array().squeeze(axis).shape()); }

Tensor concatenate(const Tensors& tensors, int axis) {
  require(!tensors.empty(), "concatenate: wants at least one tensor");
  const Tensor& first = tensors[0];
  axis = normalized_axis("concatenate", axis, first.rank());
  for (const Tensor& x : tensors) {
    bool fits = x.rank() == first.rank() && x.rank() > 0;
    for (int i = 0; fits && i < x.rank(); ++i) fits = i == axis || x.shape()[i] == first.shape()[i];
    require(fits, "concatenate: shapes differ beside axis ", axis, ": ", first.shape(), " and ", x.shape());
    require_same_dtype("concatenate", first.array(), x.array());
  }
  return apply_op<ConcatenateOp>(tensors, axis);
}

Tensor stack(const Tensors& tensors, int axis) {
  require(!tensors.empty(), "stack: wants at least one tensor");
  Tensors lifted;
  for (const Tensor& x : tensors) {
    require(x.shape() == tensors[0].shape(), "stack: shapes differ: ", tensors[0].shape(), " and ",
            x.shape());
    lifted.push_back(unsqueeze(x, axis));
  }
  return concatenate(lifted, normalized_axis("stack", axis, tensors[0].rank() + 1));
}

Tensors split(const Tensor& x, const std::vector<std::int64_t>& sizes, int axis) {
  axis = normalized_axis("split", axis, x.rank());
  std::int64_t total = 0;
  for (const std::int64_t size : sizes) {
    require(size >= 0, "split: a size is negative: ", size);
    total += size;
  }
  require(x.rank() > 0 && total == x.shape()[axis], "split: sizes add up to ", total, ", axis ", axis, " of ",
          x.shape(), " differs");
  return apply_op(std::make_unique<SplitOp>(sizes, axis), {x});
}

Tensor pad(const Tensor& x, const std::vector<std::pair<std::int64_t, std::int64_t>>& widths, double value) {
  require(static_cast<int>(widths.size()) == x.rank(), "pad: ", widths.size(), " pairs of widths for ",
          x.shape());
  for (const auto& [before, after] : widths) {
    require(before >= 0 && after >= 0, "pad: widths must not be negative, got ", before, " and ", after);
  }
  return apply_op<PadOp>({x}, widths, value);
}

Tensor lower_triangle(const Tensor& x, std::int64_t diagonal) {
  return where(below_diagonal(x, diagonal), x, constant_like(x, 0));
}

Tensor upper_triangle(const Tensor& x, std::int64_t diagonal) {
  return where(below_diagonal(x, diagonal - 1), constant_like(x, 0), x);
}

}  // namespace needle
