#include "needle/ops/dropout.h"

#include "needle/ops/elementwise.h"

namespace needle {

namespace {

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
    return {where(kept, inputs[0] * (p < 1 ? 1 / (1 - p) : 0), zero)};
  }

  NDArrays compute(const NDArrays& inputs) override { return {masked(inputs[0])}; }
  void add_gradient(NDArrays g, const Saved&, GradientSums& into) override { into.add(0, masked(g[0])); }

 private:
  NDArray masked(const NDArray& x) const {
    const NDArray y = NDArray::empty(x.shape(), x.dtype(), x.device());
    y.device()->dropout(p, stream, x.view(), y.view());
    return y;
  }
};

}  // namespace

Tensor dropout(const Tensor& x, double p, Generator& random) {
  require(p >= 0 && p <= 1, "dropout: the chance must be in [0, 1], got ", p);
  if (p == 0) return x;
  return apply_op<DropoutOp>({x}, p, random.reserve(static_cast<std::uint64_t>(x.array().count())));
}

}  // namespace needle
