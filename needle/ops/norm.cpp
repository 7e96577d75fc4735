#include "needle/ops/norm.h"

#include "needle/ops/elementwise.h"
#include "needle/ops/reduce.h"
#include "needle/ops/shape.h"

namespace needle {

namespace {

Tensor scaled_and_shifted(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const Tensor scaled = weight.defined() ? x * weight : x;
  return bias.defined() ? scaled + bias : scaled;
}

}  // namespace

Tensor layer_norm_definition(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon) {
  const Tensor centered = x - mean(x, {-1}, true);
  const Tensor deviation = sqrt(mean(centered * centered, {-1}, true) + epsilon);
  return scaled_and_shifted(centered / deviation, weight, bias);
}

Tensor rms_norm_definition(const Tensor& x, const Tensor& weight, double epsilon) {
  return scaled_and_shifted(x / sqrt(mean(x * x, {-1}, true) + epsilon), weight, {});
}

namespace {

/// Inputs: x [..., width], then weight and bias if there are any.
struct NormOp final : FusedOp {
  NormOp(NormKind which, double small, bool weighted, bool biased, DType as)
      : kind(which), epsilon(small), has_weight(weighted), has_bias(biased), result(as) {}
  NormKind kind;
  double epsilon;
  bool has_weight, has_bias;
  DType result;
  NDArray mean, inverse_deviation;  // of each row, for the gradient

  const char* name() const override { return kind == NormKind::layer ? "layer_norm" : "rms_norm"; }
  NDArrays kept() const override { return {mean, inverse_deviation}; }
  int bias_index() const { return has_weight ? 2 : 1; }

  Tensors definition(const Tensors& inputs) const override {
    const Tensor x = cast(inputs[0], computing(inputs[0].dtype()));
    const Tensor weight = has_weight ? inputs[1] : Tensor();
    const Tensor bias = has_bias ? inputs[static_cast<std::size_t>(bias_index())] : Tensor();
    return {cast(kind == NormKind::layer ? layer_norm_definition(x, weight, bias, epsilon)
                                         : rms_norm_definition(x, weight, epsilon),
                 result)};
  }

  NDArrays compute(const NDArrays& inputs) override {
    const NDArray x = inputs[0].compact(), y = NDArray::empty(x.shape(), result, x.device());
    const View rows = as_rows(x).view();
    mean = NDArray::empty({rows.shape[0]}, DType::f64, x.device());
    inverse_deviation = NDArray::empty({rows.shape[0]}, DType::f64, x.device());
    const NDArray weight = has_weight ? inputs[1].compact() : NDArray();
    const NDArray bias = has_bias ? inputs[static_cast<std::size_t>(bias_index())].compact() : NDArray();
    x.device()->norm(kind, epsilon, rows, weight.optional_view(), bias.optional_view(), as_rows(y).view(),
                     mean.view(), inverse_deviation.view());
    return {y};
  }

  void add_gradient(NDArrays g, const Saved& saved, GradientSums& into) override {
    const NDArray x = saved.input_array(0).compact();
    const NDArray weight = has_weight ? saved.input_array(1).compact() : NDArray();
    // Added straight to what the residual stream has brought.
    GradientPlace dx = into.place(0);
    if (dx.view.data) dx.view = as_rows(dx.view);
    x.device()->norm_gradient(kind, as_rows(x).view(), weight.optional_view(), mean.view(),
                              inverse_deviation.view(), as_rows(g[0]).compact().view(), dx,
                              has_weight ? into.place(1) : GradientPlace{},
                              has_bias ? into.place(bias_index()) : GradientPlace{});
  }

 private:
  static View as_rows(View x) {
    const std::int64_t width = x.shape.at(-1);
    x.shape = {width == 0 ? 0 : x.count() / width, width};
    x.strides = compact_strides(x.shape);
    return x;
  }
  static NDArray as_rows(const NDArray& x) {
    const std::int64_t width = x.size(-1);
    return x.reshape({width == 0 ? 0 : x.count() / width, width});
  }
};

Tensor norm(NormKind kind, const char* name, const Tensor& x, const Tensor& weight, const Tensor& bias,
            double epsilon, std::optional<DType> result) {
  require(x.rank() > 0, name, ": wants at least one axis");
  const std::int64_t width = x.size(-1);
  Tensors inputs{x};
  for (const Tensor& parameter : {weight, bias}) {
    if (!parameter.defined()) continue;
    require(parameter.shape() == Shape{width}, name, ": wants a weight and bias of shape [", width, "], got ",
            parameter.shape());
    require(parameter.dtype() == computing(x.dtype()), name, ": wants a weight and bias of ",
            name_of(computing(x.dtype())), " for ", name_of(x.dtype()), ", got ", name_of(parameter.dtype()));
    inputs.push_back(parameter);
  }
  const DType dtype = result.value_or(x.dtype());
  require(dtype == x.dtype() || (x.dtype() == DType::f32 && is_half(dtype)) || dtype == computing(x.dtype()),
          name, ": a result of ", name_of(x.dtype()), " cannot be ", name_of(dtype));
  return apply_op<NormOp>(inputs, kind, epsilon, weight.defined(), bias.defined(), dtype);
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon,
                  std::optional<DType> result) {
  return norm(NormKind::layer, "layer_norm", x, weight, bias, epsilon, result);
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double epsilon, std::optional<DType> result) {
  return norm(NormKind::rms, "rms_norm", x, weight, {}, epsilon, result);
}

}  // namespace needle
