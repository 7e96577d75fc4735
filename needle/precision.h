// The precision of products: a scoped mode of this thread.
#pragma once

#include "backends/dtype.h"

namespace needle {

/// The type of the operands of linear maps, and of the activations between them: f32 unless a PrecisionScope
/// says otherwise. Sums, norms, softmax, losses, gradients of parameters, and the residual stream stay
/// float32 (Micikevicius et al. 2018, "Mixed precision training").
DType product_dtype();
/// The type in which a model of float32 keeps its residual stream: f32, or what a PrecisionScope says.
DType residual_dtype();

/// Makes linear maps of float32 tensors compute with operands of f32, bf16 or f16, as long as it lives; the
/// residual stream too is kept in that type where `half_residual`, which spares memory and costs digits.
class PrecisionScope {
 public:
  explicit PrecisionScope(DType dtype, bool half_residual = false);
  PrecisionScope(const PrecisionScope&) = delete;
  PrecisionScope& operator=(const PrecisionScope&) = delete;
  ~PrecisionScope();

 private:
  DType previous_, previous_residual_;
};

}  // namespace needle
