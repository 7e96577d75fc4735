// Matrix products.
#pragma once

#include <optional>

#include "needle/autograd.h"

namespace needle {

/// [..., n, k] x [..., k, m] -> [..., n, m]; batch axes broadcast, a vector on either side loses its axis
/// again. Transposed operands cost no copy. An inner size of 0 gives zeros.
Tensor matmul(const Tensor& a, const Tensor& b);
/// x as a product with `weight` takes it: float32 is rounded to product_dtype(), and bf16 or f16 meets a
/// float32 weight as it is. Other mixtures are an Error that names `op`.
Tensor as_operand(const char* op, const Tensor& x, const Tensor& weight);
/// x table^T: x [..., k], table [m, k] -> [..., m]: a head that is tied to an embedding. The gradient of the
/// table comes as it lies. Precision as with linear(); the result has the table's type.
Tensor matmul_transposed(const Tensor& x, const Tensor& table);
/// [..., width] as [rows, width].
NDArray rows_of(const NDArray& x);
/// f(x W + b) + residual over the last axis: x [..., in], weight [in, out], bias [out] and residual [...,
/// out] or undefined; f by the epilogue. A float32 x is rounded to product_dtype(); where x is bf16 or f16,
/// so are the weight's numbers in the products, whose sums are float32. `result` is the type of what comes
/// out: by default that of the operand, or the weight's where there is a residual.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              Epilogue epilogue = Epilogue::none, const Tensor& residual = {},
              std::optional<DType> result = {});

}  // namespace needle
