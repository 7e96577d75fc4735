// The slope of the mean squared error in the intercept is 0 where the line goes through the mean point; then
// that in the slope is 0 where slope = covariance / variance.
#pragma once

#include "needle/ops/ops.h"

namespace needle::answers {

struct Line {
  double slope, intercept;
};

/// The line of least mean squared error through the points (x, y).
inline Line best_line(const Tensor& x, const Tensor& y) {
  const Tensor from_mean = x - mean(x);
  const double slope = mean(from_mean * (y - mean(y))).item() / mean(from_mean * from_mean).item();
  return {slope, mean(y).item() - slope * mean(x).item()};
}

}  // namespace needle::answers
