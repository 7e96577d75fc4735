// Products of a few rows with a large matrix, as in decoding: the matrix is read once, in the order of its
// memory, so that its bandwidth is what bounds them. Each row's sums are the same whatever rows go with it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

#include "backends/cpu/lanes.h"

namespace needle::few_rows {

/// Up to so many rows, this is faster than a library that packs the matrix first.
inline constexpr std::int64_t kMost = 8;

/// The sum of all lanes.
inline float sum_of_lanes(lanes::Vector<float> x) {
  constexpr int kLanes = lanes::kLanes<float>;
  const auto rotated = [&]<int... lane, int kBy>(std::integer_sequence<int, lane...>,
                                                 std::integral_constant<int, kBy>) {
    return __builtin_shufflevector(x, x, ((lane + kBy) % kLanes)...);
  };
  constexpr auto kAll = std::make_integer_sequence<int, kLanes>{};
  if constexpr (kLanes > 8) x += rotated(kAll, std::integral_constant<int, 8>{});
  if constexpr (kLanes > 4) x += rotated(kAll, std::integral_constant<int, 4>{});
  x += rotated(kAll, std::integral_constant<int, 2>{});
  x += rotated(kAll, std::integral_constant<int, 1>{});
  return x[0];
}

/// Bytes by which memory is asked for before it is read: the processor's own guesses keep up with one row at
/// a time, but not with several side by side. An address past the end does no harm.
inline constexpr std::int64_t kAhead = 8192;

/// A matrix whose rows are contiguous and `stride` apart.
template <class T>
struct Table {
  const T* data;
  std::int64_t stride;
};

/// Numbers of a table that are read at once, and how many vectors of floats they make.
template <class T>
inline constexpr int kParts = static_cast<int>(sizeof(float) / sizeof(T));
template <class T>
inline constexpr int kGroup = kParts<T>* lanes::kLanes<float>;

/// Part `part` of the group of numbers from p on. Of floats there is one. A part of a group of bytes is every
/// fourth of them: a word's bytes come apart by shifts, which vectorise better than conversions do.
inline lanes::Vector<float> part_of_group(const float* p, int) { return lanes::at(p); }
inline lanes::Vector<float> part_of_group(const std::int8_t* p, int part) {
  static_assert(std::endian::native == std::endian::little);
  using Words [[gnu::vector_size(lanes::kVectorBytes), gnu::aligned(1), gnu::may_alias]] = std::int32_t;
  return __builtin_convertvector((*reinterpret_cast<const Words*>(p) << (24 - 8 * part)) >> 24,
                                 lanes::Vector<float>);
}

/// Puts the whole groups of a row in the order of their parts.
template <class T>
void order_by_parts(const float* x, std::int64_t inner, float* ordered) {
  constexpr int kLanes = lanes::kLanes<float>;
  for (std::int64_t k = 0; k + kGroup<T> <= inner; k += kGroup<T>) {
    for (int part = 0; part < kParts<T>; ++part) {
      for (int lane = 0; lane < kLanes; ++lane)
        ordered[k + part * kLanes + lane] = x[k + lane * kParts<T> + part];
    }
  }
  const std::int64_t rest = inner / kGroup<T> * kGroup<T>;
  std::copy(x + rest, x + inner, ordered + rest);
}

/// store(r, j, x[r] . table[j]) for kHeight rows and kWidth rows of the table; x is ordered by parts.
template <int kHeight, int kWidth, class T, class Store>
void dots_block(const Table<float>& x, const Table<T>& table, std::int64_t inner, const Store& store) {
  constexpr int kLanes = lanes::kLanes<float>;
  lanes::Vector<float> sums[kHeight][kWidth] = {};
  std::int64_t k = 0;
  for (; k + kGroup<T> <= inner; k += kGroup<T>) {
#pragma GCC unroll 16
    for (int j = 0; j < kWidth; ++j)
      __builtin_prefetch(table.data + j * table.stride + k + kAhead / sizeof(T));
#pragma GCC unroll 4
    for (int part = 0; part < kParts<T>; ++part) {
      lanes::Vector<float> right[kWidth];
#pragma GCC unroll 16
      for (int j = 0; j < kWidth; ++j) right[j] = part_of_group(table.data + j * table.stride + k, part);
#pragma GCC unroll 16
      for (int r = 0; r < kHeight; ++r) {
        const lanes::Vector<float> left = lanes::at(x.data + r * x.stride + k + part * kLanes);
#pragma GCC unroll 16
        for (int j = 0; j < kWidth; ++j) sums[r][j] += left * right[j];
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kHeight; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < kWidth; ++j) {
      float sum = sum_of_lanes(sums[r][j]);
      for (std::int64_t rest = k; rest < inner; ++rest)
        sum += x.data[r * x.stride + rest] * static_cast<float>(table.data[j * table.stride + rest]);
      store(r, j, sum);
    }
  }
}

/// store(row, j, x[row] . table[j]) for all rows of x and rows first, ..., last - 1 of the table.
template <class T, class Store>
void dots(const Table<float>& x, std::int64_t rows, const Table<T>& table, std::int64_t inner,
          std::int64_t first, std::int64_t last, const Store& store) {
  const auto blocks = [&]<int kHeight, int kWidth>(std::int64_t r, std::int64_t j) {
    dots_block<kHeight, kWidth>({x.data + r * x.stride, x.stride},
                                Table<T>{table.data + j * table.stride, table.stride}, inner,
                                [&](int i, int column, float sum) { store(r + i, j + column, sum); });
  };
  // Rows of the table stay in the first cache while all rows of x meet them.
  constexpr int kTall = lanes::kRows / 2;
  const auto columns = [&]<int kWidth>(std::int64_t j) {
    std::int64_t r = 0;
    for (; r + kTall <= rows; r += kTall) blocks.template operator()<kTall, kWidth>(r, j);
    for (; r + 2 <= rows; r += 2) blocks.template operator()<2, kWidth>(r, j);
    for (; r < rows; ++r) blocks.template operator()<1, kWidth>(r, j);
  };
  std::int64_t j = first;
  for (; j + 4 <= last; j += 4) columns.template operator()<4>(j);
  for (; j < last; ++j) columns.template operator()<1>(j);
}

/// y [rows, columns] = x [rows, inner] b [inner, columns], or y += x b, with inner > 0 for columns first,
/// ..., last - 1.
inline void columns(const Table<float>& x, std::int64_t rows, const Table<float>& b, std::int64_t inner,
                    std::int64_t first, std::int64_t last, float* y, std::int64_t y_stride, bool accumulate) {
  constexpr std::int64_t kLanes = lanes::kLanes<float>, kDepth = 16;
  constexpr int kTall = lanes::kRows;
  // So many rows of b are read side by side, each in the order of its memory.
  for (std::int64_t k = 0; k < inner; k += kDepth) {
    const std::int64_t depth = std::min(kDepth, inner - k);
    const auto block = [&]<int kHeight, int kVectors>(std::int64_t r, std::int64_t j) {
      constexpr std::int64_t kNear = 6 * kLanes;
      const std::int64_t ahead = j + kNear < last ? kNear : kDepth * b.stride + kNear - (last - first);
      for (std::int64_t i = 0; r == 0 && i < depth; ++i) {
        for (int v = 0; v < kVectors; ++v) {
          const float* const line = b.data + (k + i) * b.stride + j + v * kLanes;
          // One row's sums wait for memory alone, those of several for what has come no further than L2.
          if (kHeight == 1)
            __builtin_prefetch(line + kDepth * b.stride, 0, 2);
          else
            __builtin_prefetch(line + ahead);
        }
      }
      lanes::multiply_block<kHeight, kVectors, float>(
          {x.data + r * x.stride + k, x.stride, 1}, {b.data + k * b.stride + j, b.stride},
          {y + r * y_stride + j, y_stride}, depth, accumulate || k > 0);
    };
    const auto all_rows = [&]<int kVectors>(std::int64_t j) {
      std::int64_t r = 0;
      for (; r + kTall <= rows; r += kTall) block.template operator()<kTall, std::min(kVectors, 3)>(r, j);
      for (; r + kTall / 2 <= rows; r += kTall / 2) block.template operator()<kTall / 2, kVectors>(r, j);
      for (; r + 2 <= rows; r += 2) block.template operator()<2, kVectors>(r, j);
      for (; r < rows; ++r) block.template operator()<1, kVectors>(r, j);
    };
    std::int64_t j = first;
    // With fewer rows, there are registers left for a vector more.
    for (; rows < kTall && j + 4 * kLanes <= last; j += 4 * kLanes) all_rows.template operator()<4>(j);
    for (; j + 3 * kLanes <= last; j += 3 * kLanes) all_rows.template operator()<3>(j);
    for (; j + kLanes <= last; j += kLanes) all_rows.template operator()<1>(j);
    for (; j < last; ++j) {
      for (std::int64_t r = 0; r < rows; ++r) {
        float sum = accumulate || k > 0 ? y[r * y_stride + j] : 0.0f;
        for (std::int64_t i = k; i < k + depth; ++i)
          sum += x.data[r * x.stride + i] * b.data[i * b.stride + j];
        y[r * y_stride + j] = sum;
      }
    }
  }
}

}  // namespace needle::few_rows
