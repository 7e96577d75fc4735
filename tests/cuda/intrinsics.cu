// Kernels that exercise the device built-ins; run by test_intrinsics.cpp on the emulator and on GPUs.
#include "tests/cuda/intrinsics.h"

#include "backends/cuda/async_copy.h"
#include "backends/cuda/device_code.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/mma.h"

namespace intrinsics {
namespace {
using needle::cuda::launch;

// One row of results per thread; results[k * threads + thread].
__global__ void warp_ops_kernel(int* results) {
  const int n = blockDim.x, t = threadIdx.x, lane = t % 32;
  const unsigned full = 0xffffffffu;
  results[0 * n + t] = __shfl_sync(full, t, 5);
  results[1 * n + t] = __shfl_sync(full, t, lane + 1, 8);
  results[2 * n + t] = __shfl_up_sync(full, t, 3);
  results[3 * n + t] = __shfl_down_sync(full, t, 3, 16);
  results[4 * n + t] = __shfl_xor_sync(full, t, 17);
  results[5 * n + t] = static_cast<int>(__ballot_sync(full, lane % 3 == 0));
  results[6 * n + t] = __any_sync(full, lane == 31);
  results[7 * n + t] = __all_sync(full, lane < 31);
  // Two halves of a warp in different branches, each with its own mask.
  if (lane < 16) {
    results[8 * n + t] = __shfl_xor_sync(0x0000ffffu, t, 1);
  } else {
    results[8 * n + t] = __shfl_xor_sync(0xffff0000u, t, 2);
  }
  results[9 * n + t] = __syncthreads_count(t % 2);
  results[10 * n + t] = __syncthreads_or(t == 7);
  results[11 * n + t] = __syncthreads_and(t != 7);
}

__global__ void index_kernel(int* results) {
  const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const int threads = blockDim.x * blockDim.y * blockDim.z;
  results[block * threads + thread] = block * 1000 + thread;
}

__global__ void atomics_kernel(int* counters, float* sum) {
  const int t = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  atomicAdd(&counters[0], 1);
  atomicMax(&counters[1], t);
  atomicMin(&counters[2], -t);
  if (t == 100) atomicExch(&counters[3], 42);
  atomicCAS(&counters[4], 0, 7);
  atomicAdd(sum, 0.5f);
}

// Dynamic shared memory, several barriers, a block that is not a multiple of 32 threads.
__global__ void rotate_kernel(float* data, int rounds) {
  NEEDLE_DYNAMIC_SHARED(float, buffer);
  const int n = blockDim.x, t = threadIdx.x;
  float value = data[blockIdx.x * n + t];
  for (int i = 0; i < rounds; ++i) {
    buffer[t] = value;
    __syncthreads();
    value = buffer[(t + 1) % n];
    __syncthreads();
  }
  data[blockIdx.x * n + t] = value;
}

struct Params {
  float factor[4];
  int offset;
};
__global__ void params_kernel(Params p, float* out) {
  p.offset += static_cast<int>(threadIdx.x);  // parameters are private to the thread
  out[threadIdx.x] = p.factor[threadIdx.x % 4] + static_cast<float>(p.offset);
}

// Each lane fills its part of the tiles, then the warp multiplies.
template <class T>
__global__ void __launch_bounds__(32)
    tensor_product_kernel(const unsigned short* a, const unsigned short* b, bool transposed, float* results) {
  struct alignas(16) Tile {
    unsigned short x[16][24];
  };
  NEEDLE_SHARED(Tile, left);
  NEEDLE_SHARED(Tile, right);
  const int lane = threadIdx.x, columns = transposed ? 16 : 8, rows = transposed ? 8 : 16;
  for (int i = lane; i < 16 * 16; i += 32) {
    left.x[i / 16][i % 16] = a[i];
    right.x[i / 16][i % 16] = i / 16 < rows && i % 16 < columns ? b[i / 16 * columns + i % 16] : 0;
  }
  __syncwarp();
  needle::cuda::FragmentA fa;
  unsigned fb[4];
  needle::cuda::load_matrix(fa.x, &left.x[lane % 16][lane / 16 * 8]);
  if (transposed) {
    needle::cuda::load_matrix(fb, &right.x[lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8]);
  } else {
    needle::cuda::load_matrix_transposed(fb, &right.x[lane % 16][lane / 16 * 8]);
  }
  const int row = lane / 4, column = lane % 4 * 2;
  needle::cuda::FragmentC sum;
  for (int i = 0; i < 4; ++i) sum.x[i] = results[(row + i / 2 * 8) * 8 + column + i % 2];
  needle::cuda::multiply_accumulate<T>(sum, fa, {fb[0], fb[1]});
  for (int i = 0; i < 4; ++i) results[(row + i / 2 * 8) * 8 + column + i % 2] = sum.x[i];
}

template <class T>
__global__ void __launch_bounds__(1024) pack_kernel(const float* x, unsigned* words) {
  const int i = threadIdx.x;
  words[i] = needle::cuda::pack<T>(x[2 * i], x[2 * i + 1]);
}

// Every thread copies for its neighbour.
__global__ void __launch_bounds__(64) copy_rows_kernel(const uint4* x, uint4* y) {
  NEEDLE_SHARED(uint4, rows, [64]);
  const int i = threadIdx.x, other = 63 - i;
  needle::cuda::copy_async_16(&rows[other], &x[other], other % 2 == 0);
  needle::cuda::wait_for_copies();
  __syncthreads();
  y[i] = rows[i];
}
__global__ void __launch_bounds__(1)
    offset_kernel(needle::MergedAxes<1> axes, long long i, long long* offset) {
  *offset = needle::cuda::offsets_of(axes, i)[0];
}

}  // namespace

void warp_ops(int* results, int threads) {
  launch(warp_ops_kernel, {dim3(1), dim3(static_cast<unsigned>(threads))}, results);
}
void indices(int* results) { launch(index_kernel, {dim3(2, 3, 2), dim3(4, 2, 3)}, results); }
void atomics(int* counters, float* sum, cudaStream_t stream) {
  launch(atomics_kernel, {dim3(3), dim3(64), 0, stream}, counters, sum);
}
void rotate(float* data, int blocks, int threads, int rounds) {
  launch(rotate_kernel,
         {dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(threads)), threads * sizeof(float)},
         data, rounds);
}
void params(float* out) {
  launch(params_kernel, {dim3(1), dim3(8)}, Params{{0.5f, 1.5f, 2.5f, 3.5f}, 10}, out);
}

void tensor_product(Half type, const unsigned short* a, const unsigned short* b, bool transposed,
                    float* results) {
  const auto kernel =
      type == Half::bf16 ? tensor_product_kernel<needle::BFloat16> : tensor_product_kernel<needle::Float16>;
  launch(kernel, {dim3(1), dim3(32)}, a, b, transposed, results);
}
void pack(Half type, const float* x, unsigned* words, int count) {
  const auto kernel = type == Half::bf16 ? pack_kernel<needle::BFloat16> : pack_kernel<needle::Float16>;
  launch(kernel, {dim3(1), dim3(static_cast<unsigned>(count))}, x, words);
}
void copy_rows_async(const uint4* x, uint4* y) { launch(copy_rows_kernel, {dim3(1), dim3(64)}, x, y); }

void offset_of_many(long long i, long long* offset) {
  const needle::View view{nullptr, needle::DType::f32, {3, 1ll << 31}, {1, 5}};
  launch(offset_kernel, {dim3(1), dim3(1)}, needle::MergedAxes<1>({view}), i, offset);
}

}  // namespace intrinsics
