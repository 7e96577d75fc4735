// Element i of H e_i is on the diagonal; one gradient that can be differentiated serves all n products.
#pragma once

#include <functional>

#include "needle/ops/ops.h"

namespace needle::answers {

/// The sum of d^2 f / d x_i^2 at x [n].
inline double laplacian(const std::function<Tensor(const Tensor&)>& f, const Tensor& x) {
  const Tensor slopes = gradients(f(x), {x}, {}, true)[0];
  double trace = 0;
  for (std::int64_t i = 0; i < x.size(0); ++i) {
    const Tensor product = gradients(sum(slice(slopes, 0, i, i + 1)), {x})[0];
    trace += product.array().item({i});
  }
  return trace;
}

}  // namespace needle::answers
