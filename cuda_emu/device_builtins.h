// What kernels may call. Included by cuda_runtime.h.
#pragma once

#include <math.h>  // libstdc++'s wrapper: <cmath> plus everything at global scope, as in CUDA

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>

#include "cuda_emu/vector_types.h"

namespace needle::cuda::emu {
// 'const' lets the compiler read each of them once per kernel: a CUDA thread never changes identity
// and the functions that run the threads of a block live in another translation unit.
[[gnu::const]] uint3 thread_idx() noexcept;
[[gnu::const]] uint3 block_idx() noexcept;
[[gnu::const]] dim3 block_dim() noexcept;
[[gnu::const]] dim3 grid_dim() noexcept;

enum class BarrierOp : int { none, count, logical_and, logical_or };
enum class WarpOp : int { sync, shfl, shfl_up, shfl_down, shfl_xor, ballot, ldmatrix, mma };

int block_barrier(BarrierOp op, int predicate, const char* file, int line);
std::uint64_t warp_collective(WarpOp op, unsigned mask, std::uint64_t value, int operand, int width,
                              const char* file, int line);
// Instructions of a whole warp (ldmatrix, mma): every lane brings a pointer to its operands; when all 32 have
// come, `together` works on all of them at once.
using WarpFunction = void(const std::uint64_t* operands_of_lane);
void warp_together(WarpOp op, void* operands, WarpFunction* together, const char* file, int line);
void require_shared(const void* p, unsigned align, const char* what, const char* file, int line);
// cp.async: `bytes` (read by the caller) land in shared memory when the thread waits for their group.
void async_copy(void* shared, const void* bytes, unsigned size);
void async_commit();
void async_wait(std::size_t newest);
// Checks one atomic access (bounds, initialised, races with plain accesses).
void check_atomic(const void* address, unsigned size, void* pc);
[[noreturn]] void trap(const char* what, const char* file, int line);
void* static_shared(const void* tag, std::size_t size, std::size_t align, const char* name, const char* file,
                    int line);
void* dynamic_shared();

template <class T>
T shuffle(WarpOp op, unsigned mask, T value, int operand, int width, const char* file, int line) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = warp_collective(op, mask, bits, operand, width, file, line);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// Read-modify-write.  Never instrumented (all CUDA threads run on one OS thread, so it is atomic);
// not inlined so that the return address is the line of the kernel that asked for it.
template <class T, class F>
[[gnu::noinline]] __attribute__((no_sanitize("thread"))) T atomic_rmw(T* address, F update) {
  check_atomic(address, sizeof(T), __builtin_return_address(0));
  T old = *address;
  *address = update(old);
  return old;
}
}  // namespace needle::cuda::emu

#define threadIdx (::needle::cuda::emu::thread_idx())
#define blockIdx (::needle::cuda::emu::block_idx())
#define blockDim (::needle::cuda::emu::block_dim())
#define gridDim (::needle::cuda::emu::grid_dim())
inline constexpr int warpSize = 32;

#define NEEDLE_EMU_LOC const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(NEEDLE_EMU_LOC) {
  needle::cuda::emu::block_barrier(needle::cuda::emu::BarrierOp::none, 0, file, line);
}
inline int __syncthreads_count(int predicate, NEEDLE_EMU_LOC) {
  return needle::cuda::emu::block_barrier(needle::cuda::emu::BarrierOp::count, predicate, file, line);
}
inline int __syncthreads_and(int predicate, NEEDLE_EMU_LOC) {
  return needle::cuda::emu::block_barrier(needle::cuda::emu::BarrierOp::logical_and, predicate, file, line);
}
inline int __syncthreads_or(int predicate, NEEDLE_EMU_LOC) {
  return needle::cuda::emu::block_barrier(needle::cuda::emu::BarrierOp::logical_or, predicate, file, line);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, NEEDLE_EMU_LOC) {
  needle::cuda::emu::warp_collective(needle::cuda::emu::WarpOp::sync, mask, 0, 0, 32, file, line);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32, NEEDLE_EMU_LOC) {
  return needle::cuda::emu::shuffle(needle::cuda::emu::WarpOp::shfl, mask, value, lane, width, file, line);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, NEEDLE_EMU_LOC) {
  return needle::cuda::emu::shuffle(needle::cuda::emu::WarpOp::shfl_up, mask, value, int(delta), width, file,
                                    line);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, NEEDLE_EMU_LOC) {
  return needle::cuda::emu::shuffle(needle::cuda::emu::WarpOp::shfl_down, mask, value, int(delta), width,
                                    file, line);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, NEEDLE_EMU_LOC) {
  return needle::cuda::emu::shuffle(needle::cuda::emu::WarpOp::shfl_xor, mask, value, lane_mask, width, file,
                                    line);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, NEEDLE_EMU_LOC) {
  return unsigned(needle::cuda::emu::warp_collective(needle::cuda::emu::WarpOp::ballot, mask, predicate != 0,
                                                     0, 32, file, line));
}
inline int __any_sync(unsigned mask, int predicate, NEEDLE_EMU_LOC) {
  return __ballot_sync(mask, predicate, file, line) != 0;
}
inline int __all_sync(unsigned mask, int predicate, NEEDLE_EMU_LOC) {
  return __ballot_sync(mask, predicate, file, line) == mask;
}
// Its value depends on how the hardware happens to have converged: never portable.
unsigned __activemask() = delete;

inline void __threadfence() {}
inline void __threadfence_block() {}
[[noreturn]] inline void __trap(NEEDLE_EMU_LOC) { needle::cuda::emu::trap("__trap()", file, line); }

template <class T>
T __ldg(const T* p) {
  return *p;
}

// Atomics
template <class T>
requires(std::is_same_v<T, int> || std::is_same_v<T, unsigned> || std::is_same_v<T, unsigned long long> ||
         std::is_same_v<T, float> || std::is_same_v<T, double>) T
    atomicAdd(T* address, std::type_identity_t<T> value) {
  return needle::cuda::emu::atomic_rmw(address, [value](T old) { return T(old + value); });
}
template <class T>
requires(std::is_same_v<T, int> || std::is_same_v<T, unsigned> || std::is_same_v<T, unsigned long long>) T
    atomicMax(T* address, std::type_identity_t<T> value) {
  return needle::cuda::emu::atomic_rmw(address, [value](T old) { return old > value ? old : value; });
}
template <class T>
requires(std::is_same_v<T, int> || std::is_same_v<T, unsigned> || std::is_same_v<T, unsigned long long>) T
    atomicMin(T* address, std::type_identity_t<T> value) {
  return needle::cuda::emu::atomic_rmw(address, [value](T old) { return old < value ? old : value; });
}
template <class T>
requires(std::is_same_v<T, int> || std::is_same_v<T, unsigned> || std::is_same_v<T, unsigned long long>) T
    atomicOr(T* address, std::type_identity_t<T> value) {
  return needle::cuda::emu::atomic_rmw(address, [value](T old) { return T(old | value); });
}
template <class T>
requires(std::is_same_v<T, int> || std::is_same_v<T, unsigned> || std::is_same_v<T, unsigned long long> ||
         std::is_same_v<T, float>) T atomicExch(T* address, std::type_identity_t<T> value) {
  return needle::cuda::emu::atomic_rmw(address, [value](T) { return value; });
}
template <class T>
requires(std::is_same_v<T, int> || std::is_same_v<T, unsigned> || std::is_same_v<T, unsigned long long> ||
         std::is_same_v<T, unsigned short>) T
    atomicCAS(T* address, std::type_identity_t<T> compare, std::type_identity_t<T> value) {
  return needle::cuda::emu::atomic_rmw(address, [=](T old) { return old == compare ? value : old; });
}

// Math that CUDA offers and <cmath> does not (or not at global scope).
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((std::uint64_t(a) * b) >> 32); }
inline int __float_as_int(float x) {
  int r;
  std::memcpy(&r, &x, 4);
  return r;
}
inline unsigned __float_as_uint(float x) {
  unsigned r;
  std::memcpy(&r, &x, 4);
  return r;
}
inline float __int_as_float(int x) {
  float r;
  std::memcpy(&r, &x, 4);
  return r;
}
inline float __uint_as_float(unsigned x) {
  float r;
  std::memcpy(&r, &x, 4);
  return r;
}
// Both arguments of one type; for floating point, NaN loses, as in CUDA.
template <class T>
requires std::is_arithmetic_v<T>
constexpr T min(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return std::fmin(a, b);
  return b < a ? b : a;
}
template <class T>
requires std::is_arithmetic_v<T>
constexpr T max(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return std::fmax(a, b);
  return a < b ? b : a;
}
