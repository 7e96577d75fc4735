// Layer norm and RMS norm over rows.
#include <cmath>
#include <utility>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/loops.h"
#include "backends/cpu/staging.h"
#include "backends/scratch.h"

namespace needle {

namespace {

struct Statistics {
  double mean, inverse_deviation;
};

/// A number as the sum of one of T and what that leaves over, so that subtracting both from numbers of T
/// loses nothing where they are large and close to it.
template <class T>
struct Center {
  T large, small;
  explicit Center(double mean)
      : large(static_cast<T>(mean)), small(static_cast<T>(mean - static_cast<double>(large))) {}
  T operator()(T x) const { return (x - large) - small; }
};

/// The mean is taken in double: a float mean of large values would cost the digits in which small spreads
/// live.
template <class T>
Statistics statistics(NormKind kind, const T* x, std::int64_t width, double epsilon) {
  const double n = static_cast<double>(width);
  double mean = 0;
  if (kind == NormKind::layer) {
#pragma omp simd reduction(+ : mean)
    for (std::int64_t i = 0; i < width; ++i) mean += static_cast<double>(x[i]);
    mean /= n;
  }
  const Center<T> centered(mean);
  T squares = 0;
#pragma omp simd reduction(+ : squares)
  for (std::int64_t i = 0; i < width; ++i) squares += centered(x[i]) * centered(x[i]);
  return {mean, 1 / std::sqrt(static_cast<double>(squares) / n + epsilon)};
}

}  // namespace

void CpuBackend::norm(NormKind kind, double epsilon, const View& x, const View& weight, const View& bias,
                      const View& y, const View& mean, const View& inverse_deviation) {
  dispatch_computing("norm", computing(x.dtype), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::int64_t rows = x.shape[0], width = x.shape[1];
    const T *gain = weight.as<T>(), *shift = bias.as<T>();
    // Each thread's rows of those that are stored in 16 bits.
    const bool rounds = is_half(x.dtype) || is_half(y.dtype);
    const Scratch<T> wide(pool_, static_cast<std::size_t>(rounds ? available_threads() * 2 * width : 0));
#pragma omp parallel for schedule(static) if (x.count() >= kParallelElements)
    for (std::int64_t row = 0; row < rows; ++row) {
      T* const own = rounds ? wide.data() + thread_number() * 2 * width : nullptr;
      const T* const from = read_run(x, row * width, 1, width, own);
      T* const to = run_target(y, row * width, 1, own + width);
      const Statistics s = statistics(kind, from, width, epsilon);
      mean.as<double>()[row] = s.mean;
      inverse_deviation.as<double>()[row] = s.inverse_deviation;
      const Center<T> centered(s.mean);
      const T scale = static_cast<T>(s.inverse_deviation);
      if (gain && shift) {
#pragma omp simd
        for (std::int64_t i = 0; i < width; ++i) to[i] = centered(from[i]) * scale * gain[i] + shift[i];
      } else {
#pragma omp simd
        for (std::int64_t i = 0; i < width; ++i) to[i] = centered(from[i]) * scale;
        for (std::int64_t i = 0; gain && i < width; ++i) to[i] *= gain[i];
        for (std::int64_t i = 0; shift && i < width; ++i) to[i] += shift[i];
      }
      write_run(y, row * width, 1, width, to);
    }
  });
}

void CpuBackend::norm_gradient(NormKind kind, const View& x, const View& weight, const View& mean,
                               const View& inverse_deviation, const View& dy, const GradientPlace& dx,
                               const GradientPlace& dweight, const GradientPlace& dbias) {
  dispatch_computing("norm", computing(x.dtype), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::int64_t rows = x.shape[0], width = x.shape[1];
    const T* gain = weight.as<T>();
    // Gradients of weight and bias are summed over fixed pieces of rows, then over the pieces in order.
    constexpr std::int64_t kRows = 64;
    const std::int64_t pieces = (rows + kRows - 1) / kRows;
    constexpr std::int64_t kBuffers = 7;
    const Scratch<T> memory(pool_, static_cast<std::size_t>(kBuffers * pieces * width));
#pragma omp parallel for schedule(static) if (x.count() >= kParallelElements)
    for (std::int64_t piece = 0; piece < pieces; ++piece) {
      T* weight_sum = memory.data() + kBuffers * piece * width;
      T *bias_sum = weight_sum + width, *g = bias_sum + width, *z = g + width, *wide = z + width,
        *wide_x = wide + width, *wide_dx = wide_x + width;
      std::fill_n(weight_sum, 2 * width, T(0));
      for (std::int64_t row = piece * kRows; row < std::min(rows, (piece + 1) * kRows); ++row) {
        const T* const from = read_run(x, row * width, 1, width, wide_x);
        const T* const incoming = read_run(dy, row * width, 1, width, wide);
        const Center<T> centered(mean.as<double>()[row]);
        const T scale = static_cast<T>(inverse_deviation.as<double>()[row]);
#pragma omp simd
        for (std::int64_t i = 0; i < width; ++i) {
          z[i] = centered(from[i]) * scale;
          weight_sum[i] += incoming[i] * z[i];
          bias_sum[i] += incoming[i];
        }
        if (!dx.view.data) continue;
        // With g the gradient at the normalised row z: dx = (g - mean(g) - z mean(g z)) / deviation.
        T total = 0, along = 0;
#pragma omp simd reduction(+ : total, along)
        for (std::int64_t i = 0; i < width; ++i) {
          g[i] = gain ? incoming[i] * gain[i] : incoming[i];
          total += g[i];
          along += g[i] * z[i];
        }
        const T mean_g = kind == NormKind::layer ? total / static_cast<T>(width) : T(0),
                mean_gz = along / static_cast<T>(width);
        T* const to = run_target(dx.view, row * width, 1, wide_dx);
        if (dx.adds) {
          const T* const before = read_run(dx.view, row * width, 1, width, wide_dx);
#pragma omp simd
          for (std::int64_t i = 0; i < width; ++i)
            to[i] = before[i] + (g[i] - mean_g - z[i] * mean_gz) * scale;
        } else {
#pragma omp simd
          for (std::int64_t i = 0; i < width; ++i) to[i] = (g[i] - mean_g - z[i] * mean_gz) * scale;
        }
        write_run(dx.view, row * width, 1, width, to);
      }
    }
    for (const auto& [place, offset] : {std::pair(dweight, std::int64_t{0}), std::pair(dbias, width)}) {
      if (!place.view.data) continue;
      if (!place.adds) fill(0, place.view);
      for (std::int64_t piece = 0; piece < pieces; ++piece) {
        const T* sum = memory.data() + kBuffers * piece * width + offset;
        for (std::int64_t i = 0; i < width; ++i) place.view.template as<T>()[i] += sum[i];
      }
    }
  });
}

}  // namespace needle
