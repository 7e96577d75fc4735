#include "tests/cuda/example_kernels.h"

#include <cuda_bf16.h>

#include <algorithm>

#include "backends/cuda/device_code.h"
#include "backends/cuda/launch.h"

namespace needle::cuda {
namespace {

__global__ void __launch_bounds__(256)
    vector_add_kernel(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out,
                      int n) {
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < n;
       i += static_cast<int>(gridDim.x * blockDim.x))
    out[i] = a[i] + b[i];
}

// Four elements per load where the address allows.
__global__ void __launch_bounds__(256)
    vector_add4_kernel(const float4* __restrict__ a, const float4* __restrict__ b, float4* __restrict__ out,
                       int n4) {
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < n4;
       i += static_cast<int>(gridDim.x * blockDim.x)) {
    const float4 x = a[i], y = b[i];
    out[i] = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
  }
}

__global__ void __launch_bounds__(256)
    scale_bf16_kernel(const __nv_bfloat16* in, __nv_bfloat16* out, float factor, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) out[i] = __float2bfloat16(__bfloat162float(in[i]) * factor);
}

int blocks_for(int n, int threads) { return std::min((n + threads - 1) / threads, 1024); }

constexpr int kRowThreads = 128;

// One block per row.
__global__ void __launch_bounds__(kRowThreads)
    row_softmax_kernel(const float* __restrict__ in, float* __restrict__ out, int cols) {
  NEEDLE_SHARED(float, scratch, [32]);
  const float* x = in + static_cast<size_t>(blockIdx.x) * cols;
  float* y = out + static_cast<size_t>(blockIdx.x) * cols;
  float largest = -INFINITY;
  for (int c = threadIdx.x; c < cols; c += kRowThreads) largest = fmaxf(largest, x[c]);
  largest = block_reduce(largest, scratch, Max{});
  float sum = 0;
  for (int c = threadIdx.x; c < cols; c += kRowThreads) sum += expf(x[c] - largest);
  sum = block_reduce(sum, scratch, Sum{});
  const float inverse = 1.0f / sum;
  for (int c = threadIdx.x; c < cols; c += kRowThreads) y[c] = expf(x[c] - largest) * inverse;
}

}  // namespace

void vector_add(const float* a, const float* b, float* out, int n, cudaStream_t stream) {
  if (n % 4 == 0) {
    const int n4 = n / 4;
    launch(vector_add4_kernel, {dim3(static_cast<unsigned>(blocks_for(n4, 256))), dim3(256), 0, stream},
           reinterpret_cast<const float4*>(a), reinterpret_cast<const float4*>(b),
           reinterpret_cast<float4*>(out), n4);
  } else {
    launch(vector_add_kernel, {dim3(static_cast<unsigned>(blocks_for(n, 256))), dim3(256), 0, stream}, a, b,
           out, n);
  }
}

void scale_bf16(const unsigned short* in, unsigned short* out, float factor, int n, cudaStream_t stream) {
  launch(scale_bf16_kernel, {dim3(static_cast<unsigned>((n + 255) / 256)), dim3(256), 0, stream},
         reinterpret_cast<const __nv_bfloat16*>(in), reinterpret_cast<__nv_bfloat16*>(out), factor, n);
}

void row_softmax(const float* in, float* out, int rows, int cols, cudaStream_t stream) {
  launch(row_softmax_kernel, {dim3(static_cast<unsigned>(rows)), dim3(kRowThreads), 0, stream}, in, out,
         cols);
}

}  // namespace needle::cuda
