// What follows a linear map: bias, activation and residual, on a part of its result that is still in the
// cache.
#pragma once

#include <cstdint>

#include "backends/epilogue.h"

namespace needle::epilogue {

/// Where a linear map is finished: y, slope and residual (or none) [rows, width], bias [width].
template <class T>
struct Target {
  T* y;
  T* slope;
  const T* bias;
  std::int64_t width;
  const T* residual = nullptr;
};

/// y = f(y + bias) + residual and slope = f'(y + bias) in the rows and columns from the first to before the
/// last.
template <class T>
void finish(Epilogue epilogue, const Target<T>& target, std::int64_t first_row, std::int64_t last_row,
            std::int64_t first_column, std::int64_t last_column) {
  dispatch(epilogue, [&](auto value, auto gradient) {
    const std::int64_t count = last_column - first_column;
    for (std::int64_t row = first_row; row < last_row; ++row) {
      T* const y = target.y + row * target.width + first_column;
      const T* const bias = target.bias + first_column;
      if (target.slope) {
        T* const slope = target.slope + row * target.width + first_column;
#pragma omp simd
        for (std::int64_t i = 0; i < count; ++i) {
          const T x = y[i] + bias[i];
          y[i] = value(x);
          slope[i] = gradient(x, T(1));
        }
      } else {
#pragma omp simd
        for (std::int64_t i = 0; i < count; ++i) y[i] = value(y[i] + bias[i]);
      }
      if (target.residual) {
        const T* const residual = target.residual + row * target.width + first_column;
#pragma omp simd
        for (std::int64_t i = 0; i < count; ++i) y[i] += residual[i];
      }
    }
  });
}

}  // namespace needle::epilogue
