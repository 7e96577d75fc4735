#include "needle/nn/layers.h"

#include <cmath>

#include "needle/precision.h"

namespace needle {

namespace {

Tensor trained(NDArray array) { return Tensor(std::move(array), true); }

NDArray normal(const Shape& shape, double deviation, const Init& init) {
  return NDArray::random({Distribution::Kind::normal, 0, deviation}, shape, init.random, init.dtype,
                         init.device);
}

NDArray uniform(const Shape& shape, double bound, const Init& init) {
  return NDArray::random({Distribution::Kind::uniform, -bound, bound}, shape, init.random, init.dtype,
                         init.device);
}

constexpr double kDeviation = 0.02;

}  // namespace

Tensor initial_weight(const Shape& shape, std::int64_t inputs, const Init& init, bool residual) {
  if (init.scheme == Initialisation::normal)
    return trained(normal(shape, kDeviation * (residual ? init.residual_scale : 1), init));
  return trained(uniform(shape, 1 / std::sqrt(static_cast<double>(inputs)), init));
}

Tensor initial_bias(std::int64_t size, std::int64_t inputs, const Init& init) {
  if (init.scheme == Initialisation::normal) return trained(NDArray::zeros({size}, init.dtype, init.device));
  return trained(uniform({size}, 1 / std::sqrt(static_cast<double>(inputs)), init));
}

Linear::Linear(std::int64_t in, std::int64_t out, bool with_bias, const Init& init, bool residual) {
  require(in > 0 && out > 0, "linear: sizes must be positive, got ", in, " and ", out);
  weight = initial_weight({in, out}, in, init, residual);
  if (with_bias) bias = initial_bias(out, in, init);
}

Tensor Linear::forward(const Tensor& x, Epilogue epilogue, const Tensor& residual,
                       std::optional<DType> result) const {
  const Scope scope(*this);
  if (quantized) return linear(x, *quantized, bias, epilogue, residual, result);
  return linear(x, weight, bias, epilogue, residual, result);
}

void Linear::quantize() {
  if (keeps_float) return;
  quantized = needle::quantize(weight.array());
  weight = Tensor();
}

void Linear::list(Parts& parts) {
  parts("weight", weight);
  parts("bias", bias);
}

Embedding::Embedding(std::int64_t rows, std::int64_t width, const Init& init)
    : weight(trained(normal({rows, width}, init.scheme == Initialisation::normal ? kDeviation : 1, init))) {}

Tensor Embedding::forward(const NDArray& ids) const {
  const Scope scope(*this);
  return gather_rows(weight, ids);
}

void Embedding::list(Parts& parts) { parts("weight", weight); }

Norm::Norm(NormKind which, std::int64_t width, bool with_bias, const Init& init, double small)
    : kind(which), epsilon(small), weight(trained(NDArray::ones({width}, init.dtype, init.device))) {
  if (with_bias && which == NormKind::layer) bias = trained(NDArray::zeros({width}, init.dtype, init.device));
}

Tensor Norm::forward(const Tensor& x, std::optional<DType> result) const {
  const Scope scope(*this);
  return kind == NormKind::layer ? layer_norm(x, weight, bias, epsilon, result)
                                 : rms_norm(x, weight, epsilon, result);
}

void Norm::list(Parts& parts) {
  parts("weight", weight);
  parts("bias", bias);
}

Tensor as_residual(const Tensor& x) { return x.dtype() == DType::f32 ? cast(x, residual_dtype()) : x; }

Dropout::Dropout(double chance) : p(chance) {
  require(p >= 0 && p <= 1, "dropout: the chance must be in [0, 1], got ", p);
}

Tensor Dropout::forward(const Tensor& x, const Pass& pass, const Tensor& residual) const {
  if (!pass.training || p == 0) return residual.defined() ? residual + x : x;
  require(pass.random != nullptr, "dropout: a training pass needs a random generator");
  const Scope scope(*this);
  return dropout(x, p, *pass.random, residual);
}

FeedForward::FeedForward(std::int64_t width, std::int64_t inner, Activation with, bool with_bias,
                         const Init& init)
    : activation(with),
      gate(with == Activation::gated ? std::optional<Linear>(std::in_place, width, inner, with_bias, init)
                                     : std::nullopt),
      up(width, inner, with_bias, init),
      down(inner, width, with_bias, init, true) {}

Tensor FeedForward::forward(const Tensor& x, const Tensor& residual, std::optional<DType> result) const {
  const Scope scope(*this);
  const auto inner = [&] {
    switch (activation) {
      case Activation::relu:
        return up.forward(x, Epilogue::relu);
      case Activation::gelu:
        return up.forward(x, Epilogue::gelu);
      case Activation::gelu_tanh:
        return up.forward(x, Epilogue::gelu_tanh);
      case Activation::gated:
        break;
    }
    return silu(gate->forward(x)) * up.forward(x);
  };
  return down.forward(inner(), Epilogue::none, residual, result);
}

void FeedForward::list(Parts& parts) {
  if (gate) parts("gate", *gate);
  parts("up", up);
  parts("down", down);
}

}  // namespace needle
