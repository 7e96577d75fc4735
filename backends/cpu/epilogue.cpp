// The gradient of what follows a linear map, in one pass.
#include <algorithm>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/loops.h"
#include "backends/cpu/staging.h"
#include "backends/scratch.h"

namespace needle {

void CpuBackend::epilogue_gradient(const View& slope, const View& g, const View& product,
                                   const GradientPlace& dbias) {
  dispatch_computing("linear", computing(g.dtype), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::int64_t rows = g.shape[0], width = g.shape[1];
    // The bias's gradient is summed over fixed pieces of rows, then over the pieces in order.
    constexpr std::int64_t kRows = 64;
    const std::int64_t pieces = (rows + kRows - 1) / kRows;
    const Scratch<T> sums(pool_, static_cast<std::size_t>(pieces * width));
    // Each thread's row of each array, for those that are stored in another type.
    constexpr std::int64_t kArrays = 3;
    const bool rounds = is_half(g.dtype) || is_half(product.dtype);
    const Scratch<T> wide(pool_,
                          static_cast<std::size_t>(rounds ? available_threads() * kArrays * width : 0));
#pragma omp parallel for schedule(static) if (g.count() >= kParallelElements)
    for (std::int64_t piece = 0; piece < pieces; ++piece) {
      T* const sum = sums.data() + piece * width;
      T* const own = rounds ? wide.data() + thread_number() * kArrays * width : nullptr;
      std::fill_n(sum, width, T(0));
      for (std::int64_t row = piece * kRows; row < std::min(rows, (piece + 1) * kRows); ++row) {
        const std::int64_t start = row * width;
        const T* const incoming = read_run(g, start, 1, width, own);
        T* const to = run_target(product, start, 1, own + width);
        if (slope.data) {
          const T* const slopes = read_run(slope, start, 1, width, own + 2 * width);
#pragma omp simd
          for (std::int64_t i = 0; i < width; ++i) {
            to[i] = incoming[i] * slopes[i];
            sum[i] += to[i];
          }
        } else {
#pragma omp simd
          for (std::int64_t i = 0; i < width; ++i) sum[i] += incoming[i];
          if (to != incoming) std::copy_n(incoming, width, to);
        }
        write_run(product, start, 1, width, to);
      }
    }
    if (dbias.view.data && !dbias.adds) fill(0, dbias.view);
    for (std::int64_t piece = 0; piece < pieces && dbias.view.data; ++piece) {
      const T* const sum = sums.data() + piece * width;
#pragma omp simd
      for (std::int64_t i = 0; i < width; ++i) dbias.view.as<T>()[i] += sum[i];
    }
  });
}

}  // namespace needle
