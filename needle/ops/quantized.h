// Weights of 8 bits, for computing without gradients: a quarter of float32's memory, which is what bounds the
// time of a token.
#pragma once

#include "needle/ops/matmul.h"

namespace needle {

/// A weight W [in, out] as W[i, j] = numbers[i, j] scale[j], numbers in [-127, 127] and scale the largest
/// |W[., j]| / 127: each element is at most scale[j] / 2 away, so that y_j = sum over i of x_i W[i, j]
/// changes by at most scale[j] / 2 times the sum of |x_i|.
struct QuantizedWeight {
  NDArray numbers;  ///< i8 [in, out]; its columns are contiguous
  NDArray scale;    ///< f32 [out]
  std::size_t bytes() const { return numbers.bytes() + scale.bytes(); }
};

/// The nearest such weight (halves to even). Throws unless the weight is f32 [in, out] and finite.
QuantizedWeight quantize(const NDArray& weight);
/// numbers times scale, f32 [in, out].
NDArray dequantize(const QuantizedWeight& weight);

/// linear() of dequantize(weight), without making that: sums are float32, and so is the result unless
/// `result` says bf16 or f16. An Error where a gradient would have to be recorded.
Tensor linear(const Tensor& x, const QuantizedWeight& weight, const Tensor& bias = {},
              Epilogue epilogue = Epilogue::none, const Tensor& residual = {},
              std::optional<DType> result = {});

}  // namespace needle
