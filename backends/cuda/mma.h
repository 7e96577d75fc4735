// Tensor cores: one 16 x 8 x 16 product of a warp, bf16 or f16 in, float accumulation (sm_80 and newer).
//
// With nvcc these are one PTX instruction each; in the emulated build the 32 lanes meet and the emulator
// computes (cuda_emu/tensor_core.cpp). Whole warps only: no divergence around a call.
//
// Layout (PTX ISA, "Matrix Fragments for mma.m16n8k16"): lane = 4 g + t, g = 0..7, t = 0..3; each unsigned
// holds two neighbouring elements, the lower index in the low half.
//   A [16 x 16]: x[0] = A[g][2t..], x[1] = A[g+8][2t..], x[2] = A[g][2t+8..], x[3] = A[g+8][2t+8..]
//   B [16 x 8]:  x[0] = B[2t..][g], x[1] = B[2t+8..][g]
//   C [16 x 8]:  x[0], x[1] = C[g][2t], C[g][2t+1];  x[2], x[3] = C[g+8][2t], C[g+8][2t+1]
// C's layout is A's, so the result of one product, rounded, is an operand of the next (attention).
#pragma once

#include <cuda_runtime.h>

#include "backends/dtype.h"

namespace needle::cuda {

struct FragmentA {
  unsigned x[4];
};
struct FragmentB {
  unsigned x[2];
};
struct FragmentC {
  float x[4];
};

#if defined(__CUDACC__)

// Four 8 x 8 tiles of 16-bit elements from shared memory: lane l gives the address (16-byte aligned) of row
// l % 8 of tile l / 8; it gets of tile i, in x[i], row l / 4, columns 2 (l % 4) and the next.
__device__ __forceinline__ void load_matrix(unsigned (&x)[4], const void* row) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address)
               : "memory");
}
// The same with each tile transposed.
__device__ __forceinline__ void load_matrix_transposed(unsigned (&x)[4], const void* row) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address)
               : "memory");
}

#define NEEDLE_MMA(type)                                                              \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                 \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+f"(c.x[0]), "+f"(c.x[1]), "+f"(c.x[2]), "+f"(c.x[3])               \
               : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1]))
// c += a b, for T = BFloat16 or Float16.
template <class T>
__device__ __forceinline__ void multiply_accumulate(FragmentC& c, const FragmentA& a, const FragmentB& b) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, BFloat16>)
    NEEDLE_MMA("bf16");
  else
    NEEDLE_MMA("f16");
#else
  __trap();  // the host code does not launch such kernels on older GPUs
#endif
}
#undef NEEDLE_MMA

// Two floats rounded to T = BFloat16 or Float16, the first in the low half.
template <class T>
__device__ __forceinline__ unsigned pack(float low, float high) {
  unsigned both = 0;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, BFloat16>)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#else
  __trap();
#endif
  return both;
}

#else

namespace emu {
struct LoadMatrixOperands {
  uint4 row;
  unsigned x[4];
};
struct MmaOperands {
  FragmentC* c;
  const FragmentA* a;
  const FragmentB* b;
};
WarpFunction load_matrix_together, load_matrix_transposed_together, mma_bf16_together, mma_f16_together;
}  // namespace emu

inline void load_matrix(unsigned (&x)[4], const void* row, NEEDLE_EMU_LOC) {
  emu::require_shared(row, 16, "ldmatrix", file, line);
  emu::LoadMatrixOperands o{*static_cast<const uint4*>(row), {}};
  emu::warp_together(emu::WarpOp::ldmatrix, &o, emu::load_matrix_together, file, line);
  for (int i = 0; i < 4; ++i) x[i] = o.x[i];
}
inline void load_matrix_transposed(unsigned (&x)[4], const void* row, NEEDLE_EMU_LOC) {
  emu::require_shared(row, 16, "ldmatrix", file, line);
  emu::LoadMatrixOperands o{*static_cast<const uint4*>(row), {}};
  emu::warp_together(emu::WarpOp::ldmatrix, &o, emu::load_matrix_transposed_together, file, line);
  for (int i = 0; i < 4; ++i) x[i] = o.x[i];
}
template <class T>
inline void multiply_accumulate(FragmentC& c, const FragmentA& a, const FragmentB& b, NEEDLE_EMU_LOC) {
  emu::MmaOperands o{&c, &a, &b};
  emu::warp_together(emu::WarpOp::mma, &o,
                     std::is_same_v<T, BFloat16> ? emu::mma_bf16_together : emu::mma_f16_together, file,
                     line);
}
template <class T>
inline unsigned pack(float low, float high) {
  return T(low).bits | static_cast<unsigned>(T(high).bits) << 16;
}

#endif

}  // namespace needle::cuda
