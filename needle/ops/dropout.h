// Dropout.
#pragma once

#include "needle/autograd.h"

namespace needle {

/// Each element is 0 with chance p, else divided by 1 - p (Srivastava et al. 2014, in the inverted form). The
/// mask is a function of the stream alone and is recomputed in the gradient, not kept. p in [0, 1]; p = 1
/// gives zeros. Added to a residual of x's shape where there is one.
Tensor dropout(const Tensor& x, double p, Generator& random, const Tensor& residual = {});

}  // namespace needle
