// What kernels may use besides plain CUDA: shared-memory declarations and small device helpers that
// compile both with nvcc and in the emulated build.
#pragma once

#include <cuda_runtime.h>

#include "backends/cuda/failure.h"
#include "backends/merged_axes.h"
#include "backends/scalar_ops.h"
#include "backends/view.h"

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

/// `value` of all 32 lanes combined by a functor such as Sum or Max; every lane gets the result. All lanes
/// must take part.
template <class T, class Op>
__device__ inline T warp_reduce(T value, Op op) {
  NEEDLE_UNROLL
  for (int offset = warpSize / 2; offset > 0; offset /= 2)
    value = op(value, __shfl_xor_sync(kFullMask, value, offset));
  return value;
}

/// The same for all threads of a block, of which there is a multiple of 32 along x alone. `scratch` is 32
/// elements of shared memory; it may be used again right after the call.
template <class T, class Op>
__device__ inline T block_reduce(T value, T* scratch, Op op) {
  const unsigned lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize;
  value = warp_reduce(value, op);
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  value = lane < blockDim.x / warpSize ? scratch[lane] : Op::template identity<T>();
  value = warp_reduce(value, op);
  __syncthreads();  // scratch has been read by everybody
  return value;
}

/// The first of this thread's elements in a loop over a grid of one dimension, and the step to its next one.
__device__ inline std::int64_t grid_index() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t grid_stride() { return static_cast<std::int64_t>(gridDim.x) * blockDim.x; }

/// Offsets of some views' element number `i`, counted row-major.
template <std::size_t N>
struct Offsets {
  std::int64_t of[N];
  __device__ std::int64_t operator[](int view) const { return of[view]; }
};
template <std::size_t N>
__device__ __forceinline__ Offsets<N> offsets_of(const MergedAxes<N>& axes, std::int64_t i) {
  Offsets<N> offsets = {};
  // 32-bit divisions take a fraction of the time of 64-bit ones.
  if (axes.count <= 0x7fffffff) {
    unsigned rest = static_cast<unsigned>(i);
    for (int axis = 0; axis < axes.rank; ++axis) {
      const unsigned size = static_cast<unsigned>(axes.sizes[axis]);
      const unsigned index = axis + 1 < axes.rank ? rest % size : rest;
      rest /= size;
      NEEDLE_UNROLL
      for (std::size_t v = 0; v < N; ++v) offsets.of[v] += index * axes.strides[axis][v];
    }
  } else {
    for (int axis = 0; axis < axes.rank; ++axis) {
      const std::int64_t index = axis + 1 < axes.rank ? i % axes.sizes[axis] : i;
      i /= axes.sizes[axis];
      NEEDLE_UNROLL
      for (std::size_t v = 0; v < N; ++v) offsets.of[v] += index * axes.strides[axis][v];
    }
  }
  return offsets;
}

/// Elements as they are stored; those of 16 bits are computed as float.
struct Stored {
  void* data;
  DType dtype;
  Stored(const View& x) : data(x.data), dtype(x.dtype) {}
  __device__ Stored(void* elements, DType type) : data(elements), dtype(type) {}
};

/// Element `i` as a T: for float from any of f32, bf16 and f16, else T itself is stored.
template <class T>
__device__ inline T load(const Stored& x, std::int64_t i) {
  if constexpr (std::is_same_v<T, float>) {
    if (x.dtype == DType::bf16) return static_cast<float>(static_cast<const BFloat16*>(x.data)[i]);
    if (x.dtype == DType::f16) return static_cast<float>(static_cast<const Float16*>(x.data)[i]);
  }
  return static_cast<const T*>(x.data)[i];
}

/// Stores element `i`, rounded to what is stored.
template <class T>
__device__ inline void store(const Stored& x, std::int64_t i, T value) {
  if constexpr (std::is_same_v<T, float>) {
    if (x.dtype == DType::bf16) {
      static_cast<BFloat16*>(x.data)[i] = BFloat16(value);
      return;
    }
    if (x.dtype == DType::f16) {
      static_cast<Float16*>(x.data)[i] = Float16(value);
      return;
    }
  }
  static_cast<T*>(x.data)[i] = value;
}

/// Keeps what was found unless something was before; any thread may call it.
__device__ inline void keep_first(Failure* failure, const Failure& found) {
  if (atomicCAS(reinterpret_cast<int*>(&failure->kind), 0, static_cast<int>(found.kind)) != 0) return;
  failure->op = found.op;
  failure->position = found.position;
  failure->value = found.value;
  failure->size = found.size;
}

}  // namespace needle::cuda
