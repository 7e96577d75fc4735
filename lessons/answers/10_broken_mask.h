// A running sum over a running count is the mean so far.
#pragma once

#include "needle/ops/ops.h"

namespace needle::answers {

/// Each state of x [batch, time, width] minus the mean of the states up to it.
inline Tensor centred(const Tensor& x) {
  const std::int64_t time = x.size(1);
  const Tensor counts(NDArray::arange(time, x.dtype(), x.device(), 1).reshape({1, time, 1}));
  return x - cumulative_sum(x, 1) / counts;
}

}  // namespace needle::answers
