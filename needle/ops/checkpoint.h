// Recomputation: memory for time.
#pragma once

#include <functional>

#include "needle/autograd.h"

namespace needle {

/// function(inputs), keeping only the inputs: what lies between is computed again in the backward pass (Chen
/// et al. 2016). Trained tensors that `function` uses beside its inputs receive their gradients as well;
/// computed ones must be passed as inputs. Pass the `random` that the function draws from, so that it draws
/// the same numbers again.
Tensors checkpoint(const std::function<Tensors(const Tensors&)>& function, const Tensors& inputs,
                   Generator* random = nullptr);

}  // namespace needle
