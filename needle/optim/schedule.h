// The learning rate over the steps of a run.
#pragma once

#include <cstdint>

namespace needle {

/// How the rate falls after its warm-up.
enum class Decay { cosine, linear, none };

/// A linear rise over `warmup` steps to `peak`, then a fall that reaches `final` after `steps` steps.
struct Schedule {
  double peak = 1e-3, final = 1e-4;
  std::int64_t warmup = 100, steps = 1000;
  Decay decay = Decay::cosine;

  /// The rate of step number `step`, counted from 0.
  double rate(std::int64_t step) const;
};

}  // namespace needle
