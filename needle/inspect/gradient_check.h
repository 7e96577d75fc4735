// Checking gradients against finite differences, of the ops in op_table.h and of functions of one's own.
#pragma once

#include <functional>
#include <string>

#include "needle/autograd.h"

namespace needle {

/// One tensor computed from others.
using TensorFunction = std::function<Tensor(const Tensors&)>;

/// What a check of one derivative found.
struct GradientCheckRow {
  std::string op;
  int order = 1;     ///< 1: the gradient; 2: the gradient of the gradient's product with a vector; ...
  double error = 0;  ///< of backward() against finite differences, relative (agreement.h), the worst input
  double difference = 0;  ///< between backward() and gradients(..., differentiable), likewise
  bool passed = false;    ///< error within kFiniteDifferenceBound and difference within kFloat64Bound
};

inline constexpr double kFiniteDifferenceBound = 1e-6, kFloat64Bound = 1e-9;

/// d f / dx at `x` by central differences of two steps, extrapolated so that the step's error falls with its
/// fourth power (Richardson 1911). `value_at` is f.
double slope_of(const std::function<double(double)>& value_at, double x, double step = 1e-3);

/// Checks the derivative of that order of `function` at the float64 `inputs`, every element of each, with
/// random weights on the elements of the result. Inputs must be farther than 0.002 from any kink.
GradientCheckRow check_gradient(const std::string& op, const TensorFunction& function, const NDArrays& inputs,
                                int order = 1);

}  // namespace needle
