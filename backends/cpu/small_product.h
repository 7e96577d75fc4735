// A matrix product for operands that lie in the nearest cache, as tiles of attention do: a block of the
// result is held in registers while one scalar of a and one row of b meet in each step.
#pragma once

#include <cstdint>

namespace needle {

#ifdef __AVX512F__
inline constexpr int kVectorBytes = 64, kBlockRows = 6;
#else
inline constexpr int kVectorBytes = 32, kBlockRows = 3;
#endif
inline constexpr int kBlockVectors = 4;

/// Elements in one vector register.
template <class T>
inline constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));

/// A vector register of T; may lie anywhere in an array of T.
template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes), aligned(alignof(T)), may_alias));
};

/// Element (i, k) of the left operand is at data[i * row_stride + k * inner_stride].
template <class T>
struct LeftOperand {
  const T* data;
  std::int64_t row_stride, inner_stride;
};

namespace detail {

template <class T, int kRows, int kVectors>
inline void product_block(LeftOperand<T> a, std::int64_t inner, const T* b, std::int64_t b_stride, T* c,
                          std::int64_t c_stride, bool accumulate) {
  using Vector = typename VectorOf<T>::type;
  Vector sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = accumulate ? reinterpret_cast<const Vector*>(c + r * c_stride)[v] : Vector{};
    }
  }
  for (std::int64_t k = 0; k < inner; ++k) {
    const Vector* row = reinterpret_cast<const Vector*>(b + k * b_stride);
    for (int r = 0; r < kRows; ++r) {
      const T scalar = a.data[r * a.row_stride + k * a.inner_stride];
      for (int v = 0; v < kVectors; ++v) sums[r][v] += scalar * row[v];
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) reinterpret_cast<Vector*>(c + r * c_stride)[v] = sums[r][v];
  }
}

template <class T, int kVectors>
void product_panel(LeftOperand<T> a, std::int64_t rows, std::int64_t inner, const T* b, std::int64_t b_stride,
                   T* c, std::int64_t c_stride, bool accumulate) {
  std::int64_t r = 0;
  const auto block = [&]<int kRows>() {
    product_block<T, kRows, kVectors>({a.data + r * a.row_stride, a.row_stride, a.inner_stride}, inner, b,
                                      b_stride, c + r * c_stride, c_stride, accumulate);
    r += kRows;
  };
  while (rows - r >= kBlockRows) block.template operator()<kBlockRows>();
  if (rows - r >= 4 && kBlockRows > 4) block.template operator()<4>();
  if (rows - r >= 2) block.template operator()<2>();
  if (rows - r >= 1) block.template operator()<1>();
}

}  // namespace detail

/// c = a b, or c += a b: a [rows, inner], b [inner, columns], c [rows, columns], with columns a multiple of
/// kLanes<T>.
template <class T>
void small_product(LeftOperand<T> a, std::int64_t rows, std::int64_t inner, std::int64_t columns, const T* b,
                   std::int64_t b_stride, T* c, std::int64_t c_stride, bool accumulate) {
  std::int64_t vectors = columns / kLanes<T>;
  for (; vectors >= kBlockVectors; vectors -= kBlockVectors) {
    detail::product_panel<T, kBlockVectors>(a, rows, inner, b, b_stride, c, c_stride, accumulate);
    b += kBlockVectors * kLanes<T>;
    c += kBlockVectors * kLanes<T>;
  }
  if (vectors >= 2) {
    detail::product_panel<T, 2>(a, rows, inner, b, b_stride, c, c_stride, accumulate);
    b += 2 * kLanes<T>;
    c += 2 * kLanes<T>;
    vectors -= 2;
  }
  if (vectors == 1) detail::product_panel<T, 1>(a, rows, inner, b, b_stride, c, c_stride, accumulate);
}

}  // namespace needle
