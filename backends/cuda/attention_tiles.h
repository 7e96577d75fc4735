// Products of tiles in float32: a block of 16 x 16 threads multiplies tiles of 64 rows, which pass through
// shared memory in panels. Rows and columns beyond an array count as zeros.
#pragma once

#include <algorithm>
#include <type_traits>

#include "backends/cuda/device_code.h"

namespace needle::cuda::attention {

inline constexpr int kTile = 64;                 ///< rows of a tile
inline constexpr int kSide = 16;                 ///< threads along each side of a tile
inline constexpr int kEach = kTile / kSide;      ///< rows and columns of a tile that a thread has
inline constexpr int kThreads = kSide * kSide;   ///< of a block
inline constexpr int kDepth = 32;                ///< what of the summed axis is in shared memory at once
inline constexpr int kPanelStride = kDepth + 4;  ///< rows begin in different banks, at 16 bytes
inline constexpr int kWeightStride = kTile + 4;  ///< the same

/// Calls function(number of columns) for what kernels are compiled for: the columns of results that a block
/// sums up at once. Wider results are made in several slices, each from scores of its own.
template <class Function>
void dispatch_columns(int width, const Function& function) {
  if (width <= 32) return function(std::integral_constant<int, 32>{});
  if (width <= 64) return function(std::integral_constant<int, 64>{});
  function(std::integral_constant<int, 128>{});
}

/// Slices of `kColumns` columns that there are: at least one, which also makes what is not in columns.
template <int kColumns>
unsigned slices(int width) {
  return static_cast<unsigned>(std::max((width + kColumns - 1) / kColumns, 1));
}
__device__ __host__ inline int tiles_of(int rows) { return (rows + kTile - 1) / kTile; }

/// This thread's part of a tile of 64 x 64, and of a tile of 64 x kColumns.
using Tile = float[kEach][kEach];
template <int kColumns>
using Sums = float[kEach][kColumns / kSide];

/// Where this thread's elements stand: in neighbouring rows, in every 16th column of a tile, and in
/// neighbouring columns of sums, kRun of them at a time.
__device__ inline int own_row(int i) { return static_cast<int>(threadIdx.x) / kSide * kEach + i; }
__device__ inline int own_column(int j) { return static_cast<int>(threadIdx.x) % kSide + j * kSide; }
template <int kColumns>
inline constexpr int kRun = kColumns / kSide < 4 ? kColumns / kSide : 4;
template <int kColumns>
__device__ inline int own_sum(int c) {
  constexpr int kLength = kRun<kColumns>;
  return c / kLength * kSide * kLength + static_cast<int>(threadIdx.x) % kSide * kLength + c % kLength;
}

/// body(i, j) for each element of a thread's Tile or Sums.
template <int kColumns = kEach, class Body>
__device__ __forceinline__ void for_own(const Body& body) {
  NEEDLE_UNROLL
  for (int i = 0; i < kEach; ++i) {
    NEEDLE_UNROLL
    for (int j = 0; j < kColumns; ++j) body(i, j);
  }
}

/// Neighbouring floats, moved by one instruction.
template <int kCount>
struct alignas(4 * kCount) Run {
  float x[kCount];
};
template <int kCount>
__device__ __forceinline__ Run<kCount> run_at(const float* from) {
  return *reinterpret_cast<const Run<kCount>*>(from);
}

/// What a block shares: the panels of two tiles, or one of values; and a tile of weights.
struct alignas(16) Shared {
  float panels[2 * kTile * kPanelStride];
  float weights[kTile * kWeightStride];
};

/// The rows of one head.
struct Rows {
  char* data;
  std::int64_t stride;  ///< in bytes
  DType dtype;
  int count, width;
  __device__ Stored row(int i) const { return {data + i * stride, dtype}; }
};

/// An array [batch, heads, rows, width], neighbours along the width side by side.
struct Heads {
  char* data;
  std::int64_t strides[3];  ///< in bytes
  DType dtype;
  int rows, width;

  explicit Heads(const View& view)
      : data(view.as<char>()),
        dtype(view.dtype),
        rows(static_cast<int>(view.shape[2])),
        width(static_cast<int>(view.shape[3])) {
    for (int axis = 0; axis < 3; ++axis)
      strides[axis] = view.strides[axis] * static_cast<std::int64_t>(size_of(dtype));
  }
  __device__ __forceinline__ Rows of(int batch, int head) const {
    return {data + batch * strides[0] + head * strides[1], strides[2], dtype, rows, width};
  }
};

/// kRows x kColumns elements on their way from global to shared memory, each thread taking some.
template <int kRows, int kColumns>
struct Panel {
  static constexpr int kCount = kRows * kColumns / kThreads;
  float values[kCount];

  __device__ __forceinline__ void fetch(const Rows& rows, int first_row, int first_column) {
    const int r = first_row + row(0), c = first_column + column(0);
    const char* from = rows.data + r * rows.stride + c * (rows.dtype == DType::f32 ? 4 : 2);
    const int count = c < rows.width ? rows.count - r : 0;
    // The type is chosen outside of the loop, so that all loads are under way together.
    if (rows.dtype == DType::bf16)
      fetch_as<BFloat16>(from, rows.stride, count);
    else if (rows.dtype == DType::f16)
      fetch_as<Float16>(from, rows.stride, count);
    else
      fetch_as<float>(from, rows.stride, count);
  }
  __device__ __forceinline__ void put(float* to, int stride) const {
    NEEDLE_UNROLL
    for (int n = 0; n < kCount; ++n) to[row(n) * stride + column(n)] = values[n];
  }
  __device__ __forceinline__ bool are_finite() const {
    float sum = 0;  // becomes NaN by any value that is not finite
    NEEDLE_UNROLL
    for (int n = 0; n < kCount; ++n) sum += values[n] * 0.0f;
    return sum == 0.0f;
  }

 private:
  __device__ static int row(int n) { return (static_cast<int>(threadIdx.x) + n * kThreads) / kColumns; }
  __device__ static int column(int n) { return (static_cast<int>(threadIdx.x) + n * kThreads) % kColumns; }

  template <class T>
  __device__ __forceinline__ void fetch_as(const char* from, std::int64_t stride, int count) {
    constexpr int kStep = kThreads / kColumns;
    NEEDLE_UNROLL
    for (int n = 0; n < kCount; ++n, from += kStep * stride)
      values[n] = n * kStep < count ? static_cast<float>(*reinterpret_cast<const T*>(from)) : 0.0f;
  }
};

/// tile[i][j] += left[first_left + i] . right[first_right + j]. Begins with a barrier, before it writes
/// shared memory.
__device__ __forceinline__ void add_products(Tile& tile, Shared& shared, const Rows& left, int first_left,
                                             const Rows& right, int first_right) {
  float* const left_panel = shared.panels;
  float* const right_panel = shared.panels + kTile * kPanelStride;
  int start = 0;
  do {
    Panel<kTile, kDepth> left_part, right_part;
    left_part.fetch(left, first_left, start);
    right_part.fetch(right, first_right, start);
    __syncthreads();
    left_part.put(left_panel, kPanelStride);
    right_part.put(right_panel, kPanelStride);
    __syncthreads();
    // Rows beyond the last need nothing: few rows cost few of the warps their time.
    const int depth = first_left + own_row(0) < left.count ? min(kDepth, left.width - start) : 0;
    for (int d = 0; d < depth; d += 4) {
      Run<4> a[kEach];
      NEEDLE_UNROLL
      for (int i = 0; i < kEach; ++i) a[i] = run_at<4>(left_panel + own_row(i) * kPanelStride + d);
      NEEDLE_UNROLL
      for (int j = 0; j < kEach; ++j) {
        const Run<4> b = run_at<4>(right_panel + own_column(j) * kPanelStride + d);
        NEEDLE_UNROLL
        for (int k = 0; k < 4; ++k) {
          NEEDLE_UNROLL
          for (int i = 0; i < kEach; ++i) tile[i][j] += a[i].x[k] * b.x[k];
        }
      }
    }
    start += kDepth;
  } while (start < left.width);
}

/// Where this thread's element (i, j) of a tile of weights stands.
__device__ inline float& own_weight(Shared& shared, int i, int j) {
  return shared.weights[own_row(i) * kWeightStride + own_column(j)];
}

/// Puts a tile of weights where add_weighted() finds it; a barrier must lie between this and the last one's
/// reading.
__device__ __forceinline__ void put_weights(Shared& shared, const Tile& tile) {
  for_own([&](int i, int j) { own_weight(shared, i, j) = tile[i][j]; });
}

/// sums[i][c] += sum over k < depth of weights[i][k] panel[k][c]; where the panel is not all finite, weights
/// of 0 are left out: 0 times infinity would be NaN.
template <bool kFinite, int kColumns>
__device__ __forceinline__ void add_panel(Sums<kColumns>& sums, const float* weights, const float* panel,
                                          int depth) {
  constexpr int kLength = kRun<kColumns>;
  for (int k = 0; k < depth; k += 4) {
    Run<4> factors[kEach];
    NEEDLE_UNROLL
    for (int i = 0; i < kEach; ++i) factors[i] = run_at<4>(weights + own_row(i) * kWeightStride + k);
    NEEDLE_UNROLL
    for (int first = 0; first < kColumns / kSide; first += kLength) {
      NEEDLE_UNROLL
      for (int n = 0; n < 4; ++n) {
        const Run<kLength> run = run_at<kLength>(panel + (k + n) * kColumns + own_sum<kColumns>(first));
        for_own<kLength>([&](int i, int c) {
          const float factor = factors[i].x[n];
          sums[i][first + c] += factor * (kFinite || factor != 0 ? run.x[c] : 0.0f);
        });
      }
    }
  }
}

/// sums[i][c] += sum over k of the weight [i][k] times values[first + k][first_column + c], in the first
/// `rows` rows. A weight of 0 adds nothing, not even times a NaN.
template <int kColumns>
__device__ __forceinline__ void add_weighted(Sums<kColumns>& sums, Shared& shared, int rows,
                                             const Rows& values, int first, int first_column) {
  static_assert(kDepth * kColumns <= 2 * kTile * kPanelStride);
  for (int start = 0; start < kTile && first + start < values.count; start += kDepth) {
    Panel<kDepth, kColumns> part;
    part.fetch(values, first + start, first_column);
    __syncthreads();
    part.put(shared.panels, kColumns);
    const bool finite = __syncthreads_and(part.are_finite());
    const int depth = own_row(0) < rows ? min(kDepth, values.count - first - start) : 0;
    if (finite)
      add_panel<true, kColumns>(sums, shared.weights + start, shared.panels, depth);
    else
      add_panel<false, kColumns>(sums, shared.weights + start, shared.panels, depth);
  }
}

/// rows[first_row + i][first_column + c] = factor sums[i][c]
template <int kColumns>
__device__ __forceinline__ void store_rows(const Rows& rows, int first_row, int first_column,
                                           const Sums<kColumns>& sums, float factor) {
  for_own<kColumns / kSide>([&](int i, int c) {
    const int row = first_row + own_row(i), column = first_column + own_sum<kColumns>(c);
    if (row < rows.count && column < rows.width) store<float>(rows.row(row), column, factor * sums[i][c]);
  });
}

}  // namespace needle::cuda::attention
