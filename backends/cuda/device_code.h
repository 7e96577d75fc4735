// What kernels may use besides plain CUDA: shared-memory declarations and small device helpers that
// compile both with nvcc and in the emulated build.
#pragma once

#include <cuda_runtime.h>

// NEEDLE_SHARED(float, tile, [32][33]);   a block's static shared array (or, without the brackets,
// NEEDLE_SHARED(float, total);            a scalar)
// NEEDLE_DYNAMIC_SHARED(float, buffer);   float* to the launch's dynamic shared memory, 16-byte aligned
#if defined(__CUDACC__)
#define NEEDLE_SHARED(type, name, ...) __shared__ type name __VA_ARGS__
#define NEEDLE_DYNAMIC_SHARED(type, name)                                 \
  extern __shared__ __align__(16) unsigned char needle_dynamic_shared_[]; \
  type* const name = reinterpret_cast<type*>(needle_dynamic_shared_)
#define NEEDLE_UNROLL _Pragma("unroll")
#else
#define NEEDLE_SHARED(type, name, ...)                                                     \
  using name##_shared_type_ = type __VA_ARGS__;                                            \
  static const char name##_shared_tag_ = 0;                                                \
  auto& name = *static_cast<name##_shared_type_*>(                                         \
      ::needle::cuda::emu::static_shared(&name##_shared_tag_, sizeof(name##_shared_type_), \
                                         alignof(name##_shared_type_), #name, __FILE__, __LINE__))
#define NEEDLE_DYNAMIC_SHARED(type, name) \
  type* const name = static_cast<type*>(::needle::cuda::emu::dynamic_shared())
#define NEEDLE_UNROLL
#endif

namespace needle::cuda {

inline constexpr unsigned kFullMask = 0xffffffffu;

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
  static constexpr float identity = 0.0f;
};
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
  static constexpr float identity = -INFINITY;
};

// Every lane gets the result.  All 32 lanes must take part.
template <class Op>
__device__ inline float warp_reduce(float value, Op op) {
  NEEDLE_UNROLL
  for (int offset = warpSize / 2; offset > 0; offset /= 2)
    value = op(value, __shfl_xor_sync(kFullMask, value, offset));
  return value;
}

// Every thread of the block gets the result.  blockDim.x must be a multiple of 32, blockDim.y = z = 1.
// scratch: 32 floats of shared memory; may be used again right after the call.
template <class Op>
__device__ inline float block_reduce(float value, float* scratch, Op op) {
  const unsigned lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize;
  value = warp_reduce(value, op);
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  value = lane < blockDim.x / warpSize ? scratch[lane] : Op::identity;
  value = warp_reduce(value, op);
  __syncthreads();  // scratch has been read by everybody
  return value;
}

}  // namespace needle::cuda
