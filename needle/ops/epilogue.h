// What fused ops do behind their product: an activation, and its gradient with that of the bias.
#pragma once

#include "needle/autograd.h"

namespace needle {

/// f(x), in simple ops.
Tensor apply_epilogue(Epilogue epilogue, const Tensor& x);

/// The incoming gradient g [..., width] times the slope of f (or none), as `dtype`, in place where nobody
/// else sees g; the sum of its rows goes to input `bias` of `into`, if there is one.
NDArray epilogue_gradient(NDArray g, const NDArray& slope, DType dtype, GradientSums* into, int bias);

}  // namespace needle
