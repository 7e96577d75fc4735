#include "needle/ops/convolution.h"

#include "needle/ops/elementwise.h"
#include "needle/ops/epilogue.h"
#include "needle/ops/matmul.h"
#include "needle/ops/shape.h"

namespace needle {

Tensor causal_convolution_definition(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                     std::int64_t dilation, Epilogue epilogue, const Tensor& residual) {
  const std::int64_t time = x.size(1), kernel = weight.size(0), before = (kernel - 1) * dilation;
  const Tensor padded = pad(x, {{0, 0}, {before, 0}, {0, 0}});
  Tensor y;
  for (std::int64_t r = 0; r < kernel; ++r) {
    const std::int64_t start = before - r * dilation;
    const Tensor part = matmul(slice(padded, 1, start, start + time), squeeze(slice(weight, 0, r, r + 1), 0));
    y = y.defined() ? y + part : part;
  }
  y = apply_epilogue(epilogue, bias.defined() ? y + bias : y);
  return residual.defined() ? y + residual : y;
}

namespace {

/// Inputs: x, weight, then the bias and the residual if there are such.
struct CausalConvolutionOp final : FusedOp {
  CausalConvolutionOp(std::int64_t steps, Epilogue with, bool biased, bool onto)
      : dilation(steps), epilogue(with), has_bias(biased), has_residual(onto) {}
  std::int64_t dilation;
  Epilogue epilogue;
  bool has_bias, has_residual;
  NDArray slope;  // of the activation, for the gradient

  const char* name() const override { return "causal_convolution"; }
  NDArrays kept() const override { return {slope}; }

  Tensors definition(const Tensors& inputs) const override {
    return {causal_convolution_definition(inputs[0], inputs[1], has_bias ? inputs[2] : Tensor(), dilation,
                                          epilogue, has_residual ? inputs.back() : Tensor())};
  }

  NDArrays compute(const NDArrays& inputs) override {
    const NDArray x = inputs[0].compact(), weight = inputs[1].compact();
    const NDArray bias = has_bias ? inputs[2].compact() : NDArray();
    const NDArray residual = has_residual ? inputs.back().compact() : NDArray();
    const NDArray y = NDArray::empty({x.size(0), x.size(1), weight.size(2)}, x.dtype(), x.device());
    if (epilogue != Epilogue::none && grad_enabled())
      slope = NDArray::empty(y.shape(), y.dtype(), y.device());
    y.device()->causal_convolution(dilation, epilogue, x.view(), weight.view(), bias.optional_view(),
                                   residual.optional_view(), y.view(), slope.optional_view());
    return {y};
  }

  void add_gradient(NDArrays g, const Saved& saved, GradientSums& into) override {
    const NDArray x = saved.input_array(0).compact(), weight = saved.input_array(1).compact();
    if (has_residual && into.needs(2 + has_bias)) into.add(2 + has_bias, g[0]);
    const bool biased = has_bias && into.needs(2);
    const NDArray dy =
        epilogue_gradient(std::exchange(g[0], {}), slope, x.dtype(), biased ? &into : nullptr, 2);
    // Added straight to what the residual has brought.
    x.device()->causal_convolution_gradient(dilation, x.view(), weight.view(), dy.view(), into.place(0),
                                            into.place(1));
  }

  double operations(std::span<const NDArray> inputs, std::span<const NDArray> outputs) const override {
    const NDArray& weight = inputs[1];
    return 2.0 * static_cast<double>(outputs[0].count()) *
           static_cast<double>(weight.size(0) * weight.size(1));
  }
  double gradient_operations(double forward, const Needs& needs) const override {
    return forward * (needs[0] + needs[1]);
  }
};

}  // namespace

Tensor causal_convolution(const Tensor& x, const Tensor& weight, const Tensor& bias, std::int64_t dilation,
                          Epilogue epilogue, const Tensor& residual) {
  require(x.rank() == 3 && weight.rank() == 3 && x.size(2) == weight.size(1) && weight.size(0) > 0,
          "causal_convolution: wants x [batch, time, in] and a weight [kernel, in, out], got ", x.shape(),
          " and ", weight.shape());
  require(dilation > 0, "causal_convolution: the dilation must be positive, got ", dilation);
  require(!bias.defined() || bias.shape() == Shape{weight.size(2)}, "causal_convolution: wants a bias [",
          weight.size(2), "], got ", bias.defined() ? bias.shape() : Shape{});
  Tensors inputs{x, weight};
  if (bias.defined()) inputs.push_back(bias);
  if (residual.defined()) {
    const Shape shape{x.size(0), x.size(1), weight.size(2)};
    require(residual.shape() == shape, "causal_convolution: wants a residual of shape ", shape, ", got ",
            residual.shape());
    inputs.push_back(residual);
  }
  for (const Tensor& other : inputs) require_same_dtype("causal_convolution", x.array(), other.array());
  return apply_op<CausalConvolutionOp>(inputs, dilation, epilogue, bias.defined(), residual.defined());
}

}  // namespace needle
