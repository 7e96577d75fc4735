// Softmax over rows.
#include <cmath>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/row_math.h"

namespace needle {

void CpuBackend::softmax(SoftmaxForm form, const View& x, const View& y) {
  dispatch_computing("softmax", x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::int64_t rows = rows_of(x), width = x.rank() == 0 ? 1 : x.shape.at(-1);
#pragma omp parallel for schedule(static) if (x.count() >= kParallelElements)
    for (std::int64_t row = 0; row < rows; ++row) {
      const T* from = x.as<T>() + row * width;
      T* to = y.as<T>() + row * width;
      const T largest = row_max(from, width);
      if (form == SoftmaxForm::probabilities) {
        const T factor = T(1) / row_exponentials(from, largest, to, width);
#pragma omp simd
        for (std::int64_t i = 0; i < width; ++i) to[i] *= factor;
      } else {
        const T log_total = std::log(row_exponential_sum(from, largest, width));
#pragma omp simd
        for (std::int64_t i = 0; i < width; ++i) to[i] = (from[i] - largest) - log_total;
      }
    }
  });
}

void CpuBackend::softmax_gradient(SoftmaxForm form, const View& y, const View& dy, const View& dx) {
  dispatch_computing("softmax", y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::int64_t rows = rows_of(y), width = y.rank() == 0 ? 1 : y.shape.at(-1);
#pragma omp parallel for schedule(static) if (y.count() >= kParallelElements)
    for (std::int64_t row = 0; row < rows; ++row) {
      const T *result = y.as<T>() + row * width, *incoming = dy.as<T>() + row * width;
      T* to = dx.as<T>() + row * width;
      if (form == SoftmaxForm::probabilities) {
        const T total = row_sum<T>(width, [=](std::int64_t i) { return result[i] * incoming[i]; });
#pragma omp simd
        for (std::int64_t i = 0; i < width; ++i) to[i] = result[i] * (incoming[i] - total);
      } else {
        const T total = row_sum<T>(width, [=](std::int64_t i) { return incoming[i]; });
#pragma omp simd
        for (std::int64_t i = 0; i < width; ++i) to[i] = incoming[i] - math::exp(result[i]) * total;
      }
    }
  });
}

}  // namespace needle
