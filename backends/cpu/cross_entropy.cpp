// Cross entropy over rows of logits.
#include <cmath>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/row_math.h"

namespace needle {

namespace {

void require_labels(const CrossEntropySettings& settings, const View& labels, std::int64_t classes) {
  for (std::int64_t row = 0; row < labels.shape[0]; ++row) {
    const std::int64_t label = labels.as<std::int64_t>()[row * labels.strides[0]];
    require(label == settings.ignore_index || (label >= 0 && label < classes), "cross_entropy: label ", label,
            " at row ", settings.first_row + row, " is outside [0, ", classes,
            ") and is not the ignore index ", settings.ignore_index);
  }
}

}  // namespace

void CpuBackend::cross_entropy(const CrossEntropySettings& settings, const View& logits, const View& labels,
                               const View& losses) {
  const std::int64_t rows = logits.shape[0], classes = logits.shape[1];
  require_labels(settings, labels, classes);
  dispatch_computing("cross_entropy", logits.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T smoothing = static_cast<T>(settings.label_smoothing);
#pragma omp parallel for schedule(static) if (logits.count() >= kParallelElements)
    for (std::int64_t row = 0; row < rows; ++row) {
      const T* x = logits.as<T>() + row * logits.strides[0];
      const std::int64_t label = labels.as<std::int64_t>()[row * labels.strides[0]];
      T& loss = losses.as<T>()[row * losses.strides[0]];
      loss = 0;
      if (label == settings.ignore_index) continue;
      const T largest = row_max(x, classes), log_total = std::log(row_exponential_sum(x, largest, classes));
      // Shifted before subtracting: at full magnitude a common offset would swallow the difference.
      loss = log_total - (x[label] - largest);
      if (smoothing > T(0)) {
        const T spread = row_sum<T>(classes, [=](std::int64_t i) { return x[i] - largest; });
        const T mean_surprise = log_total - spread / static_cast<T>(classes);
        loss = (T(1) - smoothing) * loss + smoothing * mean_surprise;
      }
    }
  });
}

void CpuBackend::cross_entropy_gradient(const CrossEntropySettings& settings, const View& logits,
                                        const View& labels, const View& dlosses, const View& dlogits) {
  const std::int64_t rows = logits.shape[0], classes = logits.shape[1];
  dispatch_computing("cross_entropy", logits.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T smoothing = static_cast<T>(settings.label_smoothing),
            everywhere = smoothing / static_cast<T>(classes);
#pragma omp parallel for schedule(static) if (logits.count() >= kParallelElements)
    for (std::int64_t row = 0; row < rows; ++row) {
      const T* x = logits.as<T>() + row * logits.strides[0];
      T* to = dlogits.as<T>() + row * dlogits.strides[0];
      const std::int64_t label = labels.as<std::int64_t>()[row * labels.strides[0]];
      if (label == settings.ignore_index) {
        std::fill_n(to, classes, T(0));
        continue;
      }
      const T incoming = dlosses.as<T>()[row * dlosses.strides[0]];
      const T factor = incoming / row_exponentials(x, row_max(x, classes), to, classes);
#pragma omp simd
      for (std::int64_t i = 0; i < classes; ++i) to[i] = to[i] * factor - everywhere * incoming;
      to[label] -= (T(1) - smoothing) * incoming;
    }
  });
}

}  // namespace needle
