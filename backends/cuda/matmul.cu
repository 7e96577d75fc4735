#include "backends/cuda/cuda_backend.h"

namespace needle {

void CudaBackend::matmul(const View&, const View&, const View&, bool) { fail("matmul: not on cuda yet"); }

void CudaBackend::linear(Epilogue, const View&, const View&, const View&, const View&, const View&,
                         const View&) {
  fail("linear: not on cuda yet");
}

}  // namespace needle
