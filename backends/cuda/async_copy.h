// Asynchronous copies from global to shared memory (cp.async); before sm_80 ordinary ones.
#pragma once

#include <cuda_runtime.h>
#if !defined(__CUDACC__)
#include <cuda_pipeline.h>
#endif

namespace needle::cuda {

#if defined(__CUDACC__)

// Starts copying 16 bytes, both addresses 16-byte aligned; when `inside` is false it writes zeros and reads
// nothing.
__device__ __forceinline__ void copy_async_16(void* shared, const void* global, bool inside) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(shared))),
               "l"(global), "r"(inside ? 16 : 0)
               : "memory");
#else
  *static_cast<uint4*>(shared) = inside ? *static_cast<const uint4*>(global) : make_uint4(0, 0, 0, 0);
#endif
}
// Waits for the copies that this thread has started; the others see them after a barrier that follows.
__device__ __forceinline__ void wait_for_copies() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

#else

inline void copy_async_16(void* shared, const void* global, bool inside, NEEDLE_EMU_LOC) {
  __pipeline_memcpy_async(shared, global, 16, inside ? 0 : 16, file, line);
}
inline void wait_for_copies() {
  __pipeline_commit();
  __pipeline_wait_prior(0);
}

#endif

}  // namespace needle::cuda
