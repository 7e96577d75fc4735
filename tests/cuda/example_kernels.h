// Small kernels for the tests of the emulator. All pointers are device pointers; everything is asynchronous
// on the stream.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

namespace needle::cuda {

/// out = a + b, n elements.
void vector_add(const float* a, const float* b, float* out, int n, cudaStream_t stream);
/// out = factor in, bfloat16 as raw bits.
void scale_bf16(const unsigned short* in, unsigned short* out, float factor, int n, cudaStream_t stream);
/// The softmax of each row of in [rows, cols].
void row_softmax(const float* in, float* out, int rows, int cols, cudaStream_t stream);
/// Row-major c[i] = a[i] b[i] for i < batch; a [m, k], b [k, n].
void batched_matmul(cublasHandle_t handle, const float* a, const float* b, float* c, int batch, int m, int n,
                    int k);

}  // namespace needle::cuda
