#include "backends/cuda/cuda_backend.h"

namespace needle {

bool CudaBackend::attention_on_tensor_cores(const AttentionSettings&, const AttentionArrays&) {
  return false;
}

bool CudaBackend::attention_gradient_on_tensor_cores(const AttentionSettings&, const AttentionArrays&,
                                                     const AttentionGradients&) {
  return false;
}

}  // namespace needle
