// Kernels with one typical mistake each, next to the correct version (bug == 0), to prove that the
// emulator finds the mistakes and does not complain about the correct version.
#include "tests/cuda/seeded_bugs.h"

#include "backends/cuda/device_code.h"
#include "backends/cuda/launch.h"

namespace seeded {
namespace {

using needle::cuda::launch;

// Reverses each block's 64 elements through shared memory.
template <Bug bug>
__global__ void reverse_kernel(const float* in, float* out) {
  NEEDLE_SHARED(float, tile, [64]);
  const int t = threadIdx.x;
  tile[t] = in[blockIdx.x * 64 + t];
  if (bug != Bug::missing_barrier) __syncthreads();
  out[blockIdx.x * 64 + t] = tile[63 - t];
}

// Sum of 4 tiles: the tile is reused, so two barriers are needed per round.
template <Bug bug>
__global__ void tiled_sum_kernel(const float* in, float* out) {
  NEEDLE_SHARED(float, tile, [64]);
  const int t = threadIdx.x;
  float sum = 0;
  for (int i = 0; i < 4; ++i) {
    tile[t] = in[i * 64 + t];
    __syncthreads();
    sum += tile[(t + 1) % 64];
    if (bug != Bug::missing_second_barrier) __syncthreads();
  }
  out[t] = sum;
}

// Neighbours in a warp exchange values through shared memory.
template <Bug bug>
__global__ void warp_exchange_kernel(float* out) {
  NEEDLE_SHARED(float, values, [32]);
  values[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (bug != Bug::missing_syncwarp) __syncwarp();
  out[threadIdx.x] = values[threadIdx.x ^ 1];
}

template <Bug bug>
__global__ void fill_kernel(float* out, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (bug == Bug::off_by_one_write ? i <= n : i < n) out[i] = 1.0f;
}

template <Bug bug>
__global__ void off_by_one_read_kernel(const float* in, float* out, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  out[i] = in[bug == Bug::off_by_one_read ? i + 1 : i];
}

template <Bug bug>
__global__ void shared_overflow_kernel(float* out) {
  NEEDLE_SHARED(float, first, [32]);
  NEEDLE_SHARED(float, second, [32]);
  second[threadIdx.x] = 0;
  first[bug == Bug::shared_off_by_one ? threadIdx.x + 1 : threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = first[threadIdx.x] + second[threadIdx.x];
}

// Only the first half of the tile is filled.
template <Bug bug>
__global__ void uninitialized_shared_kernel(const float* in, float* out) {
  NEEDLE_SHARED(float, tile, [64]);
  const int t = threadIdx.x;
  if (bug != Bug::uninitialized_shared || t < 32) tile[t] = in[t];
  __syncthreads();
  out[t] = tile[63 - t];
}

template <Bug bug>
__global__ void accumulate_kernel(const float* in, float* total, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  if (bug == Bug::no_atomic) {
    *total += in[i];
  } else {
    atomicAdd(total, in[i]);
  }
}

template <Bug bug>
__global__ void divergent_kernel(float* out) {
  const int t = threadIdx.x;
  if (bug == Bug::divergent_barrier) {
    if (t < 32)
      __syncthreads();
    else
      __syncthreads();
  } else if (bug == Bug::barrier_after_return) {
    if (t >= 40) return;
    __syncthreads();
  } else {
    __syncthreads();
  }
  out[t] = 1;
}

template <Bug bug>
__global__ void warp_sum_kernel(const float* in, float* out) {
  float v = in[threadIdx.x];
  if (bug == Bug::shuffle_in_branch) {
    if (threadIdx.x < 16)
      for (int o = 16; o > 0; o /= 2) v += __shfl_xor_sync(0xffffffffu, v, o);
    else
      __syncthreads();
  } else if (bug == Bug::shuffle_from_missing_lane) {
    if (threadIdx.x < 16) v += __shfl_xor_sync(0x0000ffffu, v, 16);
  } else {
    for (int o = 16; o > 0; o /= 2) v += __shfl_xor_sync(0xffffffffu, v, o);
  }
  out[threadIdx.x] = v;
}

template <Bug bug>
__global__ void follow_pointer_kernel(const float* value, float* out) {
  out[threadIdx.x] = *value;
}

template <Bug bug>
__global__ void misaligned_kernel(const float* in, float* out) {
  if (bug == Bug::misaligned) {
    out[0] = *reinterpret_cast<const float*>(reinterpret_cast<const char*>(in) + 2);
  } else {
    out[0] = in[0];
  }
}

// An index into a local array (registers or the thread's own memory) runs one too far.
template <Bug bug>
__global__ void local_array_kernel(const float* in, float* out, int n) {
  float values[8];
  for (int i = 0; i < (bug == Bug::local_array ? n + 1 : n); ++i) values[i] = in[i];
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += values[(i * 3) % n];
  out[0] = sum;
}

// (ptxas refuses this one at compile time.)
template <Bug bug>
__global__ void large_shared_kernel(float* out) {
#if defined(NEEDLE_CUDA_EMULATED)
  NEEDLE_SHARED(float, a, [bug == Bug::too_much_shared ? 13000 : 1000]);
#else
  NEEDLE_SHARED(float, a, [1000]);
#endif
  a[threadIdx.x] = 1;
  out[threadIdx.x] = a[threadIdx.x];
}

template <Bug bug>
__global__ void two_halves_kernel(unsigned short* out) {  // neighbouring 2-byte elements: not a race
  out[threadIdx.x] = static_cast<unsigned short>(threadIdx.x);
}

}  // namespace

#define NEEDLE_CASES(X)                                                            \
  X(missing_barrier, reverse_kernel, dim3(2), dim3(64), in, out)                   \
  X(missing_second_barrier, tiled_sum_kernel, dim3(1), dim3(64), in, out)          \
  X(missing_syncwarp, warp_exchange_kernel, dim3(1), dim3(32), out)                \
  X(off_by_one_write, fill_kernel, dim3(3), dim3(64), out, 128)                    \
  X(off_by_one_read, off_by_one_read_kernel, dim3(4), dim3(64), in, out, 256)      \
  X(shared_off_by_one, shared_overflow_kernel, dim3(1), dim3(32), out)             \
  X(uninitialized_shared, uninitialized_shared_kernel, dim3(1), dim3(64), in, out) \
  X(no_atomic, accumulate_kernel, dim3(2), dim3(32), in, out, 64)                  \
  X(divergent_barrier, divergent_kernel, dim3(1), dim3(64), out)                   \
  X(barrier_after_return, divergent_kernel, dim3(1), dim3(64), out)                \
  X(shuffle_in_branch, warp_sum_kernel, dim3(1), dim3(32), in, out)                \
  X(shuffle_from_missing_lane, warp_sum_kernel, dim3(1), dim3(32), in, out)        \
  X(misaligned, misaligned_kernel, dim3(1), dim3(1), in, out)                      \
  X(local_array, local_array_kernel, dim3(1), dim3(1), in, out, 8)                 \
  X(too_much_shared, large_shared_kernel, dim3(1), dim3(32), out)

void run(Bug which, bool with_bug, const float* in, float* out) {
  switch (which) {
#define NEEDLE_CASE(name, kernel, grid, block, ...)          \
  case Bug::name:                                            \
    if (with_bug)                                            \
      launch(kernel<Bug::name>, {grid, block}, __VA_ARGS__); \
    else                                                     \
      launch(kernel<Bug::none>, {grid, block}, __VA_ARGS__); \
    break;
    NEEDLE_CASES(NEEDLE_CASE)
    case Bug::none:
      launch(two_halves_kernel<Bug::none>, {dim3(1), dim3(64)}, reinterpret_cast<unsigned short*>(out));
      break;
  }
}

void run_follow_pointer(const float* value, float* out) {
  launch(follow_pointer_kernel<Bug::none>, {dim3(1), dim3(1)}, value, out);
}

}  // namespace seeded
