// What kernels over rows share: the largest element, exponentials and their sum.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "backends/cpu/loops.h"
#include "backends/math.h"

namespace needle {

/// The largest of a row; NaN if there is one, -infinity for no elements.
template <class T>
T row_max(const T* x, std::int64_t width) {
  T largest = -math::infinity<T>();
  T nan_sum = 0;  // 0 unless there is a NaN
#pragma omp simd reduction(max : largest) reduction(+ : nan_sum)
  for (std::int64_t i = 0; i < width; ++i) {
    largest = x[i] > largest ? x[i] : largest;
    nan_sum += x[i] == x[i] ? T(0) : T(1);
  }
  return nan_sum == T(0) ? largest : std::numeric_limits<T>::quiet_NaN();
}

/// The sum of term(i) for i in [0, count), by pieces whose sums are added in double, so that a long row loses
/// no digits to its length.
template <class T, class Term>
T row_sum(std::int64_t count, Term term) {
  constexpr std::int64_t kPiece = 1024;
  double total = 0;
  for (std::int64_t start = 0; start < count; start += kPiece) {
    const std::int64_t end = std::min(count, start + kPiece);
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = start; i < end; ++i) sum += term(i);
    total += static_cast<double>(sum);
  }
  return static_cast<T>(total);
}

/// to[i] = exp(x[i] - shift); returns their sum.
template <class T>
T row_exponentials(const T* x, T shift, T* to, std::int64_t width) {
  return row_sum<T>(width, [=](std::int64_t i) { return to[i] = math::exp(x[i] - shift); });
}

/// The sum of exp(x[i] - shift).
template <class T>
T row_exponential_sum(const T* x, T shift, std::int64_t width) {
  return row_sum<T>(width, [=](std::int64_t i) { return math::exp(x[i] - shift); });
}

}  // namespace needle
