// What was repeated is summed: along the axes that b lacks, and along those where it has size 1.
#pragma once

#include "needle/ops/ops.h"

namespace needle::answers {

/// The gradient of b in y = a / b, b broadcast to the shape of a, given that of y.
inline Tensor gradient_of_divisor(const Tensor& g, const Tensor& a, const Tensor& b) {
  const Tensor repeated = -g * a / (b * b);
  const int lacking = a.rank() - b.rank();
  Axes axes;
  for (int axis = 0; axis < a.rank(); ++axis)
    if (axis < lacking || (b.size(axis - lacking) == 1 && a.size(axis) != 1)) axes.push_back(axis);
  return axes.empty() ? repeated : reshape(sum(repeated, axes), b.shape());
}

}  // namespace needle::answers
