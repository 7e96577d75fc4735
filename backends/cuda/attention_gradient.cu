#include "backends/cuda/cuda_backend.h"

namespace needle {

void CudaBackend::attention_gradient(const AttentionSettings&, const AttentionArrays&,
                                     const AttentionGradients&) {
  fail("attention_gradient: not on cuda yet");
}

}  // namespace needle
