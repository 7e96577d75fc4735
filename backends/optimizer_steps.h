// The steps of optimizers on one element, for host and device.
#pragma once

#include <cmath>

#include "backends/backend.h"

namespace needle {

/// How a weight decay acts on the parameters of a step of Adam: through the gradient, or apart from it.
template <class T>
struct DecayNumbers {
  T coupled, keep;
  HOST_DEVICE DecayNumbers(const AdamSettings& settings, const StepState& state, double weight_decay)
      : coupled(static_cast<T>(settings.decoupled ? 0 : weight_decay)),
        keep(static_cast<T>(settings.decoupled ? 1 - state.learning_rate * weight_decay : 1)) {}
};

/// A step of Adam or AdamW in arithmetic of T.
template <class T>
struct AdamNumbers {
  T scale, epsilon, beta1, beta2, new1, new2, rate, root_correction;
  HOST_DEVICE AdamNumbers(const AdamSettings& settings, const StepState& state)
      : scale(static_cast<T>(state.gradient_scale)),
        epsilon(static_cast<T>(settings.epsilon)),
        beta1(static_cast<T>(settings.beta1)),
        beta2(static_cast<T>(settings.beta2)),
        new1(static_cast<T>(1 - settings.beta1)),
        new2(static_cast<T>(1 - settings.beta2)),
        rate(static_cast<T>(state.learning_rate / state.correction1)),
        root_correction(static_cast<T>(1 / std::sqrt(state.correction2))) {}
  /// Of parameter w with gradient g and moments m and v.
  HOST_DEVICE void step(const DecayNumbers<T>& decay, T g, T& w, T& m, T& v) const {
    const T slope = g * scale + decay.coupled * w;
    m = beta1 * m + new1 * slope;
    v = beta2 * v + new2 * slope * slope;
    w = decay.keep * w - rate * m / (std::sqrt(v) * root_correction + epsilon);
  }
};

/// A step of SGD in arithmetic of T.
template <class T>
struct SgdNumbers {
  T scale, rate, momentum;
  bool nesterov;
  HOST_DEVICE SgdNumbers(const SgdSettings& settings, const StepState& state)
      : scale(static_cast<T>(state.gradient_scale)),
        rate(static_cast<T>(state.learning_rate)),
        momentum(static_cast<T>(settings.momentum)),
        nesterov(settings.nesterov) {}
  HOST_DEVICE void step(T decay, T g, T& w) const { w -= rate * (g * scale + decay * w); }
  /// With velocity u.
  HOST_DEVICE void step(T decay, T g, T& w, T& u) const {
    const T slope = g * scale + decay * w;
    u = momentum * u + slope;
    w -= rate * (nesterov ? slope + momentum * u : u);
  }
};

}  // namespace needle
