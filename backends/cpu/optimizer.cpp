// Optimizer steps: one pass over parameter, gradient and state.
#include <cmath>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/loops.h"

namespace needle {

void CpuBackend::adam(const AdamStep& step, const View& parameter, const View& gradient, const View& first,
                      const View& second) {
  dispatch_computing("adam", parameter.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T *w = parameter.as<T>(), *m = first.as<T>(), *v = second.as<T>();
    const T* g = gradient.as<T>();
    const T scale = static_cast<T>(step.gradient_scale), epsilon = static_cast<T>(step.epsilon);
    const T beta1 = static_cast<T>(step.beta1), beta2 = static_cast<T>(step.beta2);
    const T new1 = static_cast<T>(1 - step.beta1), new2 = static_cast<T>(1 - step.beta2);
    const T coupled = static_cast<T>(step.decoupled ? 0 : step.weight_decay);
    const T keep = static_cast<T>(step.decoupled ? 1 - step.learning_rate * step.weight_decay : 1);
    const T rate = static_cast<T>(step.learning_rate / step.correction1);
    const T root_correction = static_cast<T>(1 / std::sqrt(step.correction2));
    const std::int64_t count = parameter.count();
#pragma omp parallel for simd schedule(static) if (parallel : count >= kParallelElements)
    for (std::int64_t i = 0; i < count; ++i) {
      const T slope = g[i] * scale + coupled * w[i];
      m[i] = beta1 * m[i] + new1 * slope;
      v[i] = beta2 * v[i] + new2 * slope * slope;
      w[i] = keep * w[i] - rate * m[i] / (std::sqrt(v[i]) * root_correction + epsilon);
    }
  });
}

void CpuBackend::sgd(const SgdStep& step, const View& parameter, const View& gradient, const View& velocity) {
  dispatch_computing("sgd", parameter.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T *w = parameter.as<T>(), *u = velocity.as<T>();
    const T* g = gradient.as<T>();
    const T scale = static_cast<T>(step.gradient_scale), decay = static_cast<T>(step.weight_decay);
    const T rate = static_cast<T>(step.learning_rate), momentum = static_cast<T>(step.momentum);
    const std::int64_t count = parameter.count();
    if (!u) {
#pragma omp parallel for simd schedule(static) if (parallel : count >= kParallelElements)
      for (std::int64_t i = 0; i < count; ++i) w[i] -= rate * (g[i] * scale + decay * w[i]);
      return;
    }
#pragma omp parallel for simd schedule(static) if (parallel : count >= kParallelElements)
    for (std::int64_t i = 0; i < count; ++i) {
      const T slope = g[i] * scale + decay * w[i];
      u[i] = momentum * u[i] + slope;
      w[i] -= rate * (step.nesterov ? slope + momentum * u[i] : u[i]);
    }
  });
}

}  // namespace needle
