// Emulated <cuda_pipeline.h>: asynchronous copies from global to shared memory (cp.async).
// Emulated build only; see cuda_runtime.h beside this file.
#pragma once

#include <cuda_runtime.h>

// size_and_align: 4, 8 or 16.  The last `zfill` bytes are not read but set to zero.
inline void __pipeline_memcpy_async(void* __restrict__ dst_shared, const void* __restrict__ src_global,
                                    std::size_t size_and_align, std::size_t zfill = 0, NEEDLE_EMU_LOC) {
  needle::cuda::emu::require_shared(dst_shared, static_cast<unsigned>(size_and_align), "cp.async", file,
                                    line);
  alignas(16) unsigned char bytes[16] = {};
  const auto* from = static_cast<const unsigned char*>(src_global);
  if (zfill == 0 && size_and_align == 16) {
    *reinterpret_cast<uint4*>(bytes) = *reinterpret_cast<const uint4*>(from);
  } else {
    for (std::size_t i = 0; i + zfill < size_and_align; ++i) bytes[i] = from[i];
  }
  needle::cuda::emu::async_copy(dst_shared, bytes, static_cast<unsigned>(size_and_align));
}
inline void __pipeline_commit() { needle::cuda::emu::async_commit(); }
// Waits for all but the `prior` newest groups of this thread.
inline void __pipeline_wait_prior(std::size_t prior) { needle::cuda::emu::async_wait(prior); }
