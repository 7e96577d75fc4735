// The precision of products: a scoped mode of this thread.
#pragma once

#include "backends/dtype.h"

namespace needle {

/// The type of the operands of linear maps, and of the activations between them: f32 unless a PrecisionScope
/// says otherwise. Sums, norms, softmax, losses, gradients of parameters, and what is added to a residual
/// stream stay float32 (Micikevicius et al. 2018, "Mixed precision training").
DType product_dtype();

/// Makes linear maps of float32 tensors compute with operands of f32, bf16 or f16, as long as it lives.
class PrecisionScope {
 public:
  explicit PrecisionScope(DType dtype);
  PrecisionScope(const PrecisionScope&) = delete;
  PrecisionScope& operator=(const PrecisionScope&) = delete;
  ~PrecisionScope();

 private:
  DType previous_;
};

}  // namespace needle
