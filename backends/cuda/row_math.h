// What kernels over rows share; a block takes a row, its threads the elements thread, thread + kRowThreads,
// ...
#pragma once

#include <algorithm>

#include "backends/cuda/device_code.h"
#include "backends/cuda/launch.h"

namespace needle::cuda {

inline constexpr int kRowThreads = 256;  // the most

/// A block for each of `rows` rows, with no more warps than the width has work for.
inline LaunchConfig blocks_for_rows(std::int64_t rows, std::int64_t width) {
  const std::int64_t threads = std::clamp<std::int64_t>((width + 31) / 32 * 32, 32, kRowThreads);
  return {dim3(static_cast<unsigned>(rows)), dim3(static_cast<unsigned>(threads))};
}

/// The sum of term(i) for i in [0, count), for every thread of the block.
template <class T, class Term>
__device__ T row_sum(std::int64_t count, T* scratch, const Term& term) {
  T sum(0);
  for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) sum += term(i);
  return block_reduce(sum, scratch, Sum{});
}

/// The largest of a row; NaN if there is one, -infinity for no elements.
__device__ inline float row_max(const float* x, std::int64_t count, float* scratch) {
  float largest = Max::identity<float>();
  for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) largest = Max{}(largest, x[i]);
  return block_reduce(largest, scratch, Max{});
}

/// term(i) of what a thread adds up, without a lambda, which nvcc wants marked: exp(x[i] - shift).
struct Exponential {
  const float* x;
  float shift;
  __device__ float operator()(std::int64_t i) const { return math::exp(x[i] - shift); }
};

}  // namespace needle::cuda
