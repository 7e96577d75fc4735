// Softmax and its logarithm.
#pragma once

#include "needle/autograd.h"

namespace needle {

/// exp(x) / sum(exp(x)) along `axis`, with the maximum subtracted.
Tensor softmax(const Tensor& x, int axis = -1);
/// log(softmax(x)), computed as x - logsumexp(x).
Tensor log_softmax(const Tensor& x, int axis = -1);

// The same in simple ops, along the last axis.
Tensor softmax_definition(const Tensor& x);
Tensor log_softmax_definition(const Tensor& x);

}  // namespace needle
