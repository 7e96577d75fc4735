// Host code only: an ordinary C++ file in both builds.
#include <stdexcept>
#include <string>

#include "tests/cuda/example_kernels.h"

namespace needle::cuda {

// cuBLAS is column-major: it sees our row-major a, b, c as their transposes, and c^T = b^T a^T.
void batched_matmul(cublasHandle_t handle, const float* a, const float* b, float* c, int batch, int m, int n,
                    int k) {
  const float one = 1.0f, zero = 0.0f;
  const cublasStatus_t status = cublasSgemmStridedBatched(
      handle, CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, &one, b, n, static_cast<long long>(k) * n, a, k,
      static_cast<long long>(m) * k, &zero, c, n, static_cast<long long>(m) * n, batch);
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string("cuBLAS: ") + cublasGetStatusString(status));
}

}  // namespace needle::cuda
