#include "needle/inspect/gradient_check.h"

#include <algorithm>

#include "needle/inspect/agreement.h"
#include "needle/ops/elementwise.h"
#include "needle/ops/reduce.h"

namespace needle {

namespace {

Tensors leaves(const NDArrays& arrays) {
  Tensors result;
  for (const NDArray& array : arrays) result.emplace_back(array, true);
  return result;
}

/// d f / d inputs[which].
NDArray finite_differences(const TensorFunction& f, const NDArrays& inputs, std::size_t which) {
  const NDArray& x = inputs[which];
  std::vector<double> values = x.to_vector<double>(), slopes;
  for (double& value : values) {
    const double middle = value;
    const auto value_at = [&](double moved) {
      value = moved;
      NDArrays changed = inputs;
      changed[which] = NDArray::from(values, x.shape(), x.device());
      return f(leaves(changed)).item();
    };
    slopes.push_back(slope_of(value_at, middle));
    value = middle;
  }
  return NDArray::from(slopes, x.shape(), x.device());
}

/// The sum of <d f / d input, direction> over all inputs, as a function of the inputs.
TensorFunction derivative_along(const TensorFunction& f, const NDArrays& directions) {
  return [f, directions](const Tensors& inputs) {
    const Tensors slopes = gradients(f(inputs), inputs, {}, true);
    Tensor total = sum(slopes[0] * Tensor(directions[0]));
    for (std::size_t i = 1; i < slopes.size(); ++i) total = total + sum(slopes[i] * Tensor(directions[i]));
    return total;
  };
}

}  // namespace

double slope_of(const std::function<double(double)>& value_at, double x, double step) {
  const auto slope = [&](double h) { return (value_at(x + h) - value_at(x - h)) / (2 * h); };
  return (4 * slope(step / 2) - slope(step)) / 3;
}

GradientCheckRow check_gradient(const std::string& op, const TensorFunction& function, const NDArrays& at,
                                int order) {
  Generator random(2024);
  const auto normal_like = [&](const NDArray& x) {
    return NDArray::random({Distribution::Kind::normal, 0, 1}, x.shape(), random, DType::f64, x.device());
  };
  // The weights of the result's elements are an input like the others: a gradient's own gradient has them
  // too.
  NDArrays inputs = at;
  inputs.push_back(normal_like(function(leaves(at)).array()));
  TensorFunction number = [function](const Tensors& all) {
    return sum(function({all.begin(), all.end() - 1}) * all.back());
  };
  for (int done = 1; done < order; ++done) {
    NDArrays directions;
    for (const NDArray& x : inputs) directions.push_back(normal_like(x));
    number = derivative_along(number, directions);
  }

  const double scale = largest_magnitude(inputs.back());
  const Tensors fast = leaves(inputs), slow = leaves(inputs);
  if (const Tensor y = number(fast); y.requires_grad()) y.backward();
  const Tensors recorded = gradients(number(slow), slow, {}, true);
  GradientCheckRow row{op, order};
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const NDArray gradient = fast[i].grad().defined()
                                 ? fast[i].grad()
                                 : NDArray::zeros(inputs[i].shape(), DType::f64, inputs[i].device());
    row.error = std::max(row.error, relative_error(gradient, finite_differences(number, inputs, i), scale));
    row.difference = std::max(row.difference, relative_error(gradient, recorded[i].array(), scale));
  }
  row.passed = row.error <= kFiniteDifferenceBound && row.difference <= kFloat64Bound;
  return row;
}

}  // namespace needle
