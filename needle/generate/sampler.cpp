#include "needle/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/error.h"

namespace needle {

std::vector<double> probabilities(std::span<const float> logits, const SamplerSettings& settings) {
  require(settings.temperature >= 0, "sample: the temperature must be at least 0, got ",
          settings.temperature);
  const std::size_t count = settings.vocabulary > 0
                                ? std::min(logits.size(), static_cast<std::size_t>(settings.vocabulary))
                                : logits.size();
  std::vector<double> result(logits.size());
  double largest = -std::numeric_limits<double>::infinity();
  std::size_t best = 0;
  for (std::size_t id = 0; id < count; ++id) {
    require(!std::isnan(logits[id]), "sample: the logit of id ", id,
            " is not a number; the model has diverged");
    if (logits[id] > largest) {
      largest = logits[id];
      best = id;
    }
  }
  require(std::isfinite(largest), "sample: no finite largest logit among ", count, " ids");
  double total = 0;
  for (std::size_t id = 0; id < count; ++id) {
    // A temperature so small that the quotient overflows chooses the largest, as 0 does.
    const double gap = static_cast<double>(logits[id]) - largest;
    result[id] = settings.temperature == 0 ? id == best : gap == 0 ? 1 : std::exp(gap / settings.temperature);
    total += result[id];
  }
  for (double& p : result) p /= total;
  return result;
}

std::int64_t sample(std::span<const float> logits, const SamplerSettings& settings, Generator& random) {
  const std::vector<double> chances = probabilities(logits, settings);
  if (settings.temperature == 0) return std::max_element(chances.begin(), chances.end()) - chances.begin();
  double left = random.uniform();
  std::int64_t last = 0;
  for (std::size_t id = 0; id < chances.size(); ++id) {
    if (chances[id] == 0) continue;
    last = static_cast<std::int64_t>(id);
    left -= chances[id];
    if (left < 0) break;
  }
  return last;
}

}  // namespace needle
