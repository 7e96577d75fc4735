// Elementwise arithmetic, functions, comparisons and choice. Two tensors broadcast as in NumPy; types must
// agree.
#pragma once

#include "needle/autograd.h"

namespace needle {

Tensor operator+(const Tensor& a, const Tensor& b);
Tensor operator-(const Tensor& a, const Tensor& b);
Tensor operator*(const Tensor& a, const Tensor& b);
Tensor operator/(const Tensor& a, const Tensor& b);
Tensor operator+(const Tensor& a, double b);
Tensor operator-(const Tensor& a, double b);
Tensor operator*(const Tensor& a, double b);
Tensor operator/(const Tensor& a, double b);
Tensor operator+(double a, const Tensor& b);
Tensor operator-(double a, const Tensor& b);
Tensor operator*(double a, const Tensor& b);
Tensor operator/(double a, const Tensor& b);
Tensor operator-(const Tensor& x);

/// a^b. Where the base is 0 the derivatives are the limits that exist: 0 rather than NaN.
Tensor power(const Tensor& a, const Tensor& b);
Tensor power(const Tensor& x, double exponent);
/// The larger (smaller) of two; equal values share the gradient equally.
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);

Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor erf(const Tensor& x);
/// 1 / (1 + exp(-x)).
Tensor sigmoid(const Tensor& x);
/// max(x, 0), with derivative 0 at 0.
Tensor relu(const Tensor& x);
/// Which formula gelu() uses; models trained with one differ with the other by up to 5e-4 a layer.
enum class GeluForm { exact, tanh };
/// x times the normal distribution function (Hendrycks and Gimpel 2016, section 2), or its tanh
/// approximation.
Tensor gelu(const Tensor& x, GeluForm form = GeluForm::exact);
/// x sigmoid(x).
Tensor silu(const Tensor& x);
/// log(1 + exp(x)).
Tensor softplus(const Tensor& x);
/// |x|, with derivative 0 at 0.
Tensor abs(const Tensor& x);
/// x limited to [low, high]; the derivative is 1 on the closed interval, 0 outside.
Tensor clamp(const Tensor& x, double low, double high);

/// Comparisons give boolean tensors, without gradient.
Tensor equal(const Tensor& a, const Tensor& b);
Tensor not_equal(const Tensor& a, const Tensor& b);
Tensor less(const Tensor& a, const Tensor& b);
Tensor less_equal(const Tensor& a, const Tensor& b);
Tensor greater(const Tensor& a, const Tensor& b);
Tensor greater_equal(const Tensor& a, const Tensor& b);
/// condition (bool) ? a : b. What is not chosen gets a gradient of exactly 0.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);

/// g times a local derivative, where a g of 0 gives 0 even against an infinite derivative.
Tensor gradient_product(const Tensor& g, const Tensor& derivative);
/// A constant of the same type, shape [], on the device of `like`.
Tensor constant_like(const Tensor& like, double value);
/// The same numbers in another floating type; the gradient is converted back.
Tensor cast(const Tensor& x, DType dtype);

}  // namespace needle
