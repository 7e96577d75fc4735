// The gradient of what follows a linear map, in one pass.
#include <algorithm>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/loops.h"
#include "backends/cpu/scratch.h"

namespace needle {

void CpuBackend::epilogue_gradient(const View& slope, const View& g, const View& dbias) {
  dispatch_computing("linear", g.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::int64_t rows = g.shape[0], width = g.shape[1];
    // The bias's gradient is summed over fixed pieces of rows, then over the pieces in order.
    constexpr std::int64_t kRows = 64;
    const std::int64_t pieces = (rows + kRows - 1) / kRows;
    const Scratch<T> sums(pool_, static_cast<std::size_t>(pieces * width));
#pragma omp parallel for schedule(static) if (g.count() >= kParallelElements)
    for (std::int64_t piece = 0; piece < pieces; ++piece) {
      T* const sum = sums.data() + piece * width;
      std::fill_n(sum, width, T(0));
      for (std::int64_t row = piece * kRows; row < std::min(rows, (piece + 1) * kRows); ++row) {
        T* const gradient = g.as<T>() + row * width;
        if (slope.data) {
          const T* const slopes = slope.as<T>() + row * width;
#pragma omp simd
          for (std::int64_t i = 0; i < width; ++i) {
            gradient[i] *= slopes[i];
            sum[i] += gradient[i];
          }
        } else {
#pragma omp simd
          for (std::int64_t i = 0; i < width; ++i) sum[i] += gradient[i];
        }
      }
    }
    for (std::int64_t piece = 0; piece < pieces && dbias.data; ++piece) {
      const T* const sum = sums.data() + piece * width;
#pragma omp simd
      for (std::int64_t i = 0; i < width; ++i) dbias.as<T>()[i] += sum[i];
    }
  });
}

}  // namespace needle
