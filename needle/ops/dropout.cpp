#include "needle/ops/dropout.h"

#include "needle/ops/elementwise.h"

namespace needle {

namespace {

/// Inputs: x, and the residual if there is one.
struct DropoutOp final : FusedOp {
  DropoutOp(double chance, PhiloxStream from) : p(chance), stream(from) {}
  double p;
  PhiloxStream stream;

  const char* name() const override { return "dropout"; }

  Tensors definition(const Tensors& inputs) const override {
    const NDArray draw = NDArray::empty(inputs[0].shape(), DType::f32, inputs[0].device());
    draw.device()->random({Distribution::Kind::uniform, 0, 1}, stream, draw.view());
    const Tensor kept(binary(GreaterEqual{}, draw, NDArray::scalar(p, DType::f32, draw.device())));
    const Tensor zero = constant_like(inputs[0], 0);
    const Tensor y = where(kept, inputs[0] * (p < 1 ? 1 / (1 - p) : 0), zero);
    return {inputs.size() > 1 ? y + inputs[1] : y};
  }

  NDArrays compute(const NDArrays& inputs) override {
    return {masked(inputs[0], inputs.size() > 1 ? inputs[1].compact() : NDArray())};
  }
  void add_gradient(NDArrays g, const Saved& saved, GradientSums& into) override {
    if (into.needs(0)) into.add(0, masked(g[0], {}));
    if (saved.input_count() > 1 && into.needs(1)) into.add(1, g[0]);
  }

 private:
  NDArray masked(const NDArray& x, const NDArray& residual) const {
    const NDArray y = NDArray::empty(x.shape(), x.dtype(), x.device());
    y.device()->dropout(p, stream, x.view(), residual.optional_view(), y.view());
    return y;
  }
};

}  // namespace

Tensor dropout(const Tensor& x, double p, Generator& random, const Tensor& residual) {
  require(p >= 0 && p <= 1, "dropout: the chance must be in [0, 1], got ", p);
  if (residual.defined()) {
    require(residual.shape() == x.shape(), "dropout: wants a residual of shape ", x.shape(), ", got ",
            residual.shape());
    require_same_dtype("dropout", x.array(), residual.array());
  }
  if (p == 0) return residual.defined() ? residual + x : x;
  Tensors inputs{x};
  if (residual.defined()) inputs.push_back(residual);
  return apply_op<DropoutOp>(inputs, p, random.reserve(static_cast<std::uint64_t>(x.array().count())));
}

}  // namespace needle
