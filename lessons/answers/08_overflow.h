// -log sigmoid(z) = log(1 + exp(-z)) = log(1 + exp(z)) - z, and -log(1 - sigmoid(z)) = log(1 + exp(z)); so
// both are log(1 + exp(z)) - label z, and softplus() is log(1 + exp(z)) without overflow. One could also
// write max(z, 0) + log(1 + exp(-|z|)) - label z; but at z = 0 the slopes of its two kinks must then cancel.
#pragma once

#include "needle/ops/ops.h"

namespace needle::answers {

/// The loss of each score z against its label, 0 or 1.
inline Tensor yes_no_loss(const Tensor& z, const Tensor& label) { return softplus(z) - label * z; }

}  // namespace needle::answers
