#include "backends/cuda/cuda_backend.h"

namespace needle {

void CudaBackend::recurrence(RecurrentCell, const RecurrentArrays&) { fail("recurrence: not on cuda yet"); }

void CudaBackend::recurrence_gradient(RecurrentCell, const RecurrentArrays&, const RecurrentGradients&) {
  fail("recurrence_gradient: not on cuda yet");
}

}  // namespace needle
