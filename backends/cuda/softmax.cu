#include "backends/cuda/cuda_backend.h"

namespace needle {

void CudaBackend::softmax(SoftmaxForm, const View&, const View&) { fail("softmax: not on cuda yet"); }

void CudaBackend::softmax_gradient(SoftmaxForm, const View&, const View&, const View&) {
  fail("softmax_gradient: not on cuda yet");
}

}  // namespace needle
