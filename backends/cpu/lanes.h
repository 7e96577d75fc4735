// Vectors as wide as the processor's registers, a small matrix product made of them, and a transpose: what
// the attention and recurrent kernels compute with.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace needle::lanes {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64, kRows = 8;
#elif defined(__AVX__)
inline constexpr int kVectorBytes = 32, kRows = 4;
#else
inline constexpr int kVectorBytes = 16, kRows = 4;
#endif

/// Numbers in a vector register.
template <class T>
inline constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));

/// kLanes numbers that are added, multiplied and compared at once.
template <class T>
struct VectorOf;
template <>
struct VectorOf<float> {
  using Type [[gnu::vector_size(kVectorBytes), gnu::aligned(4), gnu::may_alias]] = float;
};
template <>
struct VectorOf<double> {
  using Type [[gnu::vector_size(kVectorBytes), gnu::aligned(8), gnu::may_alias]] = double;
};
template <class T>
using Vector = typename VectorOf<T>::Type;

/// The kLanes numbers from p on.
template <class T>
Vector<T>& at(T* p) {
  return *reinterpret_cast<Vector<T>*>(p);
}
template <class T>
const Vector<T>& at(const T* p) {
  return *reinterpret_cast<const Vector<T>*>(p);
}

/// x in every lane.
template <class T>
Vector<T> broadcast(T x) {
  // Spelled out, it becomes one instruction that loads; adding x to a vector of zeros does not.
  return [&]<int... lane>(std::integer_sequence<int, lane...>) { return Vector<T>{((void)lane, x)...}; }
  (std::make_integer_sequence<int, kLanes<T>>{});
}

/// A matrix whose element (i, k) lies at data[i * row_stride + k * column_stride].
template <class T>
struct Left {
  const T* data;
  std::int64_t row_stride, column_stride;
};

/// A matrix whose rows are contiguous and `stride` apart.
template <class T>
struct Rows {
  T* data;
  std::int64_t stride;
  operator Rows<const T>() const { return {data, stride}; }
};

/// kHeight x (kVectors kLanes) elements of c = a b, or c += a b, kept in registers over all of `depth`.
template <int kHeight, int kVectors, class T>
void multiply_block(const Left<T>& a, const Rows<const T>& b, const Rows<T>& c, std::int64_t depth,
                    bool accumulate) {
  // Unrolled in full, or the sums would not stay in registers.
  Vector<T> sums[kHeight][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kHeight; ++i) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      sums[i][v] = accumulate ? at(c.data + i * c.stride + v * kLanes<T>) : Vector<T>{};
    }
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    Vector<T> right[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) right[v] = at(b.data + k * b.stride + v * kLanes<T>);
#pragma GCC unroll 16
    for (int i = 0; i < kHeight; ++i) {
      const Vector<T> left = broadcast(a.data[i * a.row_stride + k * a.column_stride]);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sums[i][v] += left * right[v];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kHeight; ++i) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) at(c.data + i * c.stride + v * kLanes<T>) = sums[i][v];
  }
}

/// A product of which all counts.
struct Whole {
  /// The part of the inner axis that matters to rows first, ..., first + count - 1.
  std::pair<std::int64_t, std::int64_t> inner(std::int64_t, std::int64_t, std::int64_t depth) const {
    return {0, depth};
  }
  /// The first column that matters to them.
  std::int64_t column(std::int64_t) const { return 0; }
};

/// c [rows, columns] = a [rows, depth] b [depth, columns], or c += a b. Computes whole blocks: a and c must
/// have room for rows rounded up to kRows, b and c for columns rounded up to kLanes. What does not matter by
/// `part` may be left out: summands as if they were 0, elements of c as they were.
template <class T, class Part = Whole>
void multiply(const Left<T>& a, const Rows<const T>& b, const Rows<T>& c, std::int64_t rows,
              std::int64_t columns, std::int64_t depth, bool accumulate, const Part& part = {}) {
  const auto block = [&]<int kHeight, int kVectors>(std::int64_t i, std::int64_t j) {
    const auto [first, last] = part.inner(i, kHeight, depth);
    multiply_block<kHeight, kVectors, T>(
        {a.data + i * a.row_stride + first * a.column_stride, a.row_stride, a.column_stride},
        {b.data + first * b.stride + j, b.stride}, {c.data + i * c.stride + j, c.stride}, last - first,
        accumulate);
  };
  constexpr std::int64_t kWide = 4 * kLanes<T>;
  std::int64_t j = 0;
  for (; columns - j > kWide - kLanes<T>; j += kWide) {
    for (std::int64_t i = 0; i < rows; i += kRows) {
      // Columns that do not matter are left out by whole vectors.
      switch (std::clamp<std::int64_t>((part.column(i) - j) / kLanes<T>, 0, 4)) {
        case 0:
          block.template operator()<kRows / 2, 4>(i, j);
          if (i + kRows / 2 < rows) block.template operator()<kRows / 2, 4>(i + kRows / 2, j);
          break;
        case 1:
          block.template operator()<kRows, 3>(i, j + kLanes<T>);
          break;
        case 2:
          block.template operator()<kRows, 2>(i, j + 2 * kLanes<T>);
          break;
        case 3:
          block.template operator()<kRows, 1>(i, j + 3 * kLanes<T>);
      }
    }
  }
  for (; columns - j > kLanes<T>; j += 2 * kLanes<T>) {
    for (std::int64_t i = 0; i < rows; i += kRows) block.template operator()<kRows, 2>(i, j);
  }
  for (std::int64_t i = 0; j < columns && i < rows; i += kRows) block.template operator()<kRows, 1>(i, j);
}

/// Lanes of a and b in turn: those of their lower halves (offset 0) or upper halves (offset kLanes / 2).
template <class T, int offset>
Vector<T> interleave(const Vector<T>& a, const Vector<T>& b) {
  return [&]<int... lane>(std::integer_sequence<int, lane...>) {
    return __builtin_shufflevector(a, b, (lane / 2 + offset + lane % 2 * kLanes<T>)...);
  }
  (std::make_integer_sequence<int, kLanes<T>>{});
}

/// y [columns, rows] = transpose of x [rows, columns]; both sizes are multiples of kLanes.
template <class T>
void transpose(const Rows<const T>& x, const Rows<T>& y, std::int64_t rows, std::int64_t columns) {
  constexpr int kSize = kLanes<T>, kHalf = kSize / 2;
  for (std::int64_t i = 0; i < rows; i += kSize) {
    for (std::int64_t j = 0; j < columns; j += kSize) {
      Vector<T> square[kSize], next[kSize];
      for (int r = 0; r < kSize; ++r) square[r] = at(x.data + (i + r) * x.stride + j);
        // A round rotates the bits of (row, lane) by one; log2(kSize) rounds exchange the two.
#pragma GCC unroll 8
      for (int round = 1; round < kSize; round *= 2) {
#pragma GCC unroll 8
        for (int r = 0; r < kHalf; ++r) {
          next[2 * r] = interleave<T, 0>(square[r], square[r + kHalf]);
          next[2 * r + 1] = interleave<T, kHalf>(square[r], square[r + kHalf]);
        }
#pragma GCC unroll 16
        for (int r = 0; r < kSize; ++r) square[r] = next[r];
      }
      for (int r = 0; r < kSize; ++r) at(y.data + (j + r) * y.stride + i) = square[r];
    }
  }
}

}  // namespace needle::lanes
