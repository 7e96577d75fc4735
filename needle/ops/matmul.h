// Matrix products.
#pragma once

#include "needle/autograd.h"

namespace needle {

/// [..., n, k] x [..., k, m] -> [..., n, m]; batch axes broadcast, a vector on either side loses its axis
/// again. Transposed operands cost no copy. An inner size of 0 gives zeros.
Tensor matmul(const Tensor& a, const Tensor& b);
/// x table^T: x [..., k], table [m, k] -> [..., m]: a head that is tied to an embedding. The gradient of the
/// table comes as it lies.
Tensor matmul_transposed(const Tensor& x, const Tensor& table);
/// f(x W + b) + residual over the last axis: x [..., in], weight [in, out], bias [out] and residual [..., out]
/// or undefined; f by the epilogue.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              Epilogue epilogue = Epilogue::none, const Tensor& residual = {});

}  // namespace needle
