// What kernels over rows share: the largest element, exponentials and their sum.
#pragma once

#include <cstdint>
#include <limits>

#include "backends/cpu/loops.h"
#include "backends/math.h"

namespace needle {

/// The largest of a row; NaN if there is one, -infinity for no elements.
template <class T>
T row_max(const T* x, std::int64_t width) {
  T largest = -math::infinity<T>();
  T nan_sum = 0;  // 0 unless there is a NaN (or infinities of both signs, which give NaN in any case)
#pragma omp simd reduction(max : largest) reduction(+ : nan_sum)
  for (std::int64_t i = 0; i < width; ++i) {
    largest = x[i] > largest ? x[i] : largest;
    nan_sum += x[i] == x[i] ? T(0) : T(1);
  }
  return nan_sum == T(0) ? largest : std::numeric_limits<T>::quiet_NaN();
}

/// to[i] = exp(x[i] - shift); returns their sum.
template <class T>
T row_exponentials(const T* x, T shift, T* to, std::int64_t width) {
  T total = 0;
#pragma omp simd reduction(+ : total)
  for (std::int64_t i = 0; i < width; ++i) {
    const T e = math::exp(x[i] - shift);
    to[i] = e;
    total += e;
  }
  return total;
}

/// The sum of exp(x[i] - shift).
template <class T>
T row_exponential_sum(const T* x, T shift, std::int64_t width) {
  T total = 0;
#pragma omp simd reduction(+ : total)
  for (std::int64_t i = 0; i < width; ++i) total += math::exp(x[i] - shift);
  return total;
}

}  // namespace needle
