#include "needle/ops/quantized.h"

#include <algorithm>
#include <cmath>

#include "needle/counters.h"
#include "needle/ops/elementwise.h"

namespace needle {

namespace {

constexpr float kMost = 127;

/// Inputs: x [rows, in], numbers [in, out], scale [out], then the bias and the residual if there are such.
struct QuantizedLinearOp final : Op {
  QuantizedLinearOp(Epilogue with, bool biased, bool onto)
      : epilogue(with), has_bias(biased), has_residual(onto) {}
  Epilogue epilogue;
  bool has_bias, has_residual;

  const char* name() const override { return "linear_int8"; }

  NDArrays compute(const NDArrays& inputs) override {
    const NDArray x = rows_of(inputs[0]).compact(), columns = inputs[1].transpose().compact();
    const NDArray scale = inputs[2].compact(), bias = has_bias ? inputs[3].compact() : NDArray();
    const NDArray residual = has_residual ? inputs.back().compact() : NDArray();
    Shape shape = inputs[0].shape();
    shape[shape.rank() - 1] = columns.size(0);
    const NDArray y = NDArray::empty(shape, DType::f32, x.device());
    y.device()->linear_int8(epilogue, x.view(), columns.view(), scale.view(), bias.optional_view(),
                            residual.defined() ? rows_of(residual).view() : View{}, rows_of(y).view());
    return {y};
  }

  Tensors gradient(const Tensors&, const Saved&, const Needs&) override {
    fail("linear_int8: a quantised weight computes without gradients alone");
  }

  double operations(std::span<const NDArray> inputs, std::span<const NDArray> outputs) const override {
    return product_operations(inputs, outputs);
  }
};

}  // namespace

QuantizedWeight quantize(const NDArray& weight) {
  require(weight.rank() == 2 && weight.dtype() == DType::f32, "quantize: wants a weight f32 [in, out], got ",
          name_of(weight.dtype()), ' ', weight.shape());
  const std::int64_t in = weight.size(0), out = weight.size(1);
  const std::vector<float> columns = weight.transpose().to_vector<float>();
  std::vector<std::int8_t> numbers(columns.size());
  std::vector<float> scales(static_cast<std::size_t>(out));
  for (std::int64_t j = 0; j < out; ++j) {
    const float* const column = columns.data() + j * in;
    float largest = 0, zero = 0;
    for (std::int64_t i = 0; i < in; ++i) {
      largest = std::max(largest, std::abs(column[i]));
      zero += column[i] * 0;  // NaN from whatever is not finite
    }
    require(zero == 0, "quantize: column ", j, " of the weight ", weight.shape(), " is not finite");
    // A scale that is not normal would be rounded itself; such small weights count as 0.
    const float scale = std::isnormal(largest / kMost) ? largest / kMost : 0;
    scales[static_cast<std::size_t>(j)] = scale;
    std::int8_t* const to = numbers.data() + j * in;
    for (std::int64_t i = 0; i < in && scale > 0; ++i)
      to[i] = static_cast<std::int8_t>(std::nearbyint(column[i] / scale));
  }
  return {NDArray::from(numbers, {out, in}, weight.device()).transpose(),
          NDArray::from(scales, {out}, weight.device())};
}

NDArray dequantize(const QuantizedWeight& weight) {
  return binary(Multiply{}, weight.numbers.cast(DType::f32), weight.scale);
}

Tensor linear(const Tensor& x, const QuantizedWeight& weight, const Tensor& bias, Epilogue epilogue,
              const Tensor& residual, std::optional<DType> result) {
  const std::int64_t in = weight.numbers.size(0), out = weight.numbers.size(1);
  require(x.rank() > 0 && x.size(-1) == in && computing(x.dtype()) == DType::f32,
          "linear_int8: wants f32, bf16 or f16 [..., ", in, "], got ", name_of(x.dtype()), ' ', x.shape());
  require(!bias.defined() || (bias.dtype() == DType::f32 && bias.shape() == Shape{out}),
          "linear_int8: wants a bias f32 [", out, "], got ", bias.defined() ? name_of(bias.dtype()) : "", ' ',
          bias.defined() ? bias.shape() : Shape{});
  Shape shape = x.shape();
  shape[shape.rank() - 1] = out;
  require(!residual.defined() || (computing(residual.dtype()) == DType::f32 && residual.shape() == shape),
          "linear_int8: wants a residual f32, bf16 or f16 ", shape, ", got ",
          residual.defined() ? name_of(residual.dtype()) : "", ' ',
          residual.defined() ? residual.shape() : Shape{});
  Tensors inputs{cast(x, DType::f32), Tensor(weight.numbers), Tensor(weight.scale)};
  if (bias.defined()) inputs.push_back(bias);
  if (residual.defined()) inputs.push_back(cast(residual, DType::f32));
  for (const Tensor& input : inputs) {
    require(!grad_enabled() || !input.requires_grad(),
            "linear_int8: a quantised weight computes without gradients alone; compute under NoGrad");
  }
  const Tensor y = apply_op<QuantizedLinearOp>(inputs, epilogue, bias.defined(), residual.defined());
  return cast(y, result.value_or(residual.defined() ? residual.dtype() : DType::f32));
}

}  // namespace needle
