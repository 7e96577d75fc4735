#include "needle/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace needle {

double Schedule::rate(std::int64_t step) const {
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup + 1);
  if (decay == Decay::none) return peak;
  const double span = static_cast<double>(std::max<std::int64_t>(steps - warmup, 1));
  const double share = std::min(static_cast<double>(step - warmup) / span, 1.0);
  const double left = decay == Decay::linear ? 1 - share : 0.5 * (1 + std::cos(std::numbers::pi * share));
  return final + left * (peak - final);
}

}  // namespace needle
