#include "needle/ops/rotary.h"

#include <cmath>

#include "needle/ops/elementwise.h"
#include "needle/ops/shape.h"

namespace needle {

Tensor rotary_definition(const Tensor& x, const NDArray& positions, double base, RotaryPairs pairs) {
  const std::int64_t width = x.size(3), half = width / 2;
  std::vector<double> frequencies;
  for (std::int64_t r = 0; r < half; ++r) {
    frequencies.push_back(std::pow(base, -2.0 * static_cast<double>(r) / static_cast<double>(width)));
  }
  // Large positions want float64, which the CPU has.
  const NDArray angles = binary(Multiply{}, positions.to(cpu()).cast(DType::f64).unsqueeze(1).unsqueeze(-1),
                                NDArray::from(frequencies, {half}));
  const Tensor cosine(unary(Cos{}, angles).cast(x.dtype()).to(x.device())),
      sine(unary(Sin{}, angles).cast(x.dtype()).to(x.device()));
  const auto turned = [&](const Tensor& first, const Tensor& second) {
    return Tensors{first * cosine - second * sine, first * sine + second * cosine};
  };
  if (pairs == RotaryPairs::halves) {
    return concatenate(turned(slice(x, 3, 0, half), slice(x, 3, half, width)), 3);
  }
  const Tensors parts = turned(slice(x, 3, 0, width, 2), slice(x, 3, 1, width, 2));
  return reshape(stack(parts, 4), x.shape());
}

namespace {

struct RotaryOp final : FusedOp {
  RotaryOp(NDArray at, double of, RotaryPairs by, double toward)
      : positions(std::move(at)), base(of), pairs(by), direction(toward) {}
  NDArray positions;
  double base;
  RotaryPairs pairs;
  double direction;

  const char* name() const override { return "rotary"; }
  NDArrays kept() const override { return {positions}; }
  Reads reads() const override { return {}; }

  Tensors definition(const Tensors& inputs) const override {
    return {rotary_definition(inputs[0], positions, base, pairs)};
  }

  NDArrays compute(const NDArrays& inputs) override { return {turn(inputs[0], direction)}; }

  /// A rotation's transpose is the rotation back, whatever x is.
  Tensors gradient(const Tensors& g, const Saved&, const Needs&) override {
    return {apply_op<RotaryOp>({g[0]}, positions, base, pairs, -direction)};
  }
  void add_gradient(NDArrays g, const Saved&, GradientSums& into) override {
    into.add(0, turn(g[0], -direction));
  }

 private:
  NDArray turn(const NDArray& x, double toward) const {
    // Time before heads in memory, as attention reads it.
    const NDArray y =
        NDArray::empty({x.size(0), x.size(2), x.size(1), x.size(3)}, x.dtype(), x.device()).transpose(1, 2);
    y.device()->rotary(base, pairs == RotaryPairs::interleaved, toward, positions.view(), x.view(), y.view());
    return y;
  }
};

}  // namespace

Tensor rotary(const Tensor& x, const NDArray& positions, double base, RotaryPairs pairs) {
  require(x.rank() == 4 && x.size(3) % 2 == 0, "rotary: wants [batch, heads, time, an even width], got ",
          x.shape());
  require_same_device("rotary", x.array(), positions);
  require(positions.dtype() == DType::i64 && positions.shape() == Shape{x.size(0), x.size(2)},
          "rotary: wants i64 positions [", x.size(0), ", ", x.size(2), "], got ", name_of(positions.dtype()),
          positions.shape());
  return apply_op<RotaryOp>({x}, positions, base, pairs, 1.0);
}

}  // namespace needle
