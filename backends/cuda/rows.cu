#include "backends/cuda/cuda_backend.h"

namespace needle {

void CudaBackend::gather_rows(const View&, const View&, const View&) { fail("gather_rows: not on cuda yet"); }

void CudaBackend::scatter_add_rows(const View&, const View&, const View&) {
  fail("scatter_add_rows: not on cuda yet");
}

void CudaBackend::gather(const View&, int, const View&, const View&) { fail("gather: not on cuda yet"); }

void CudaBackend::scatter_add(const View&, int, const View&, const View&) {
  fail("scatter_add: not on cuda yet");
}

}  // namespace needle
