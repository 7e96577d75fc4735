#include "needle/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backends/error.h"

namespace needle {

namespace {

std::size_t likeliest(const std::vector<double>& values) {
  return static_cast<std::size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

/// The logits that can be drawn, in float64, penalised. Throws on what is not a number.
std::vector<double> drawable(std::span<const float> logits, const SamplerSettings& settings,
                             std::span<const std::int64_t> past) {
  const std::size_t count = settings.vocabulary > 0
                                ? std::min(logits.size(), static_cast<std::size_t>(settings.vocabulary))
                                : logits.size();
  std::vector<double> result(logits.begin(), logits.begin() + static_cast<std::ptrdiff_t>(count));
  for (std::size_t id = 0; id < count; ++id) {
    require(!std::isnan(result[id]), "sample: the logit of id ", id,
            " is not a number; the model has diverged");
  }
  if (settings.repetition_penalty != 1) {
    // Once an id, however often the row holds it.
    std::vector<std::int64_t> ids(past.begin(), past.end());
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    for (const std::int64_t id : ids) {
      if (id < 0 || id >= static_cast<std::int64_t>(count)) continue;
      double& logit = result[static_cast<std::size_t>(id)];
      logit = logit > 0 ? logit / settings.repetition_penalty : logit * settings.repetition_penalty;
    }
  }
  require(std::isfinite(result[likeliest(result)]), "sample: no finite largest logit among ", count, " ids");
  return result;
}

void normalise(std::vector<double>& chances) {
  const double total = std::accumulate(chances.begin(), chances.end(), 0.0);
  for (double& chance : chances) chance /= total;
}

/// Leaves the first of `order` whose sum reaches `mass`, at most `most` and at least one.
void keep_likeliest(std::vector<double>& chances, std::int64_t most, double mass) {
  // What is rarer than this cannot be needed: all of them together do not make up what may be left out.
  const double rare = (1 - mass) / static_cast<double>(chances.size());
  std::vector<std::size_t> order;
  for (std::size_t id = 0; id < chances.size(); ++id) {
    if (chances[id] > 0 && (chances[id] >= rare || mass >= 1)) order.push_back(id);
  }
  const auto kept = std::min(order.size(), most > 0 ? static_cast<std::size_t>(most) : order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(),
                    [&](std::size_t a, std::size_t b) {
                      return chances[a] > chances[b] || (chances[a] == chances[b] && a < b);
                    });
  std::vector<double> result(chances.size());
  double sum = 0;
  for (std::size_t i = 0; i < kept && (i == 0 || sum < mass); ++i) {
    result[order[i]] = chances[order[i]];
    sum += chances[order[i]];
  }
  chances = std::move(result);
  normalise(chances);
}

}  // namespace

void check(const SamplerSettings& settings) {
  require(settings.temperature >= 0, "sample: the temperature must be at least 0, got ",
          settings.temperature);
  require(settings.top_k >= 0, "sample: top-k must be at least 0, which keeps all, got ", settings.top_k);
  require(settings.top_p >= 0 && settings.top_p <= 1, "sample: top-p must be in [0, 1], got ",
          settings.top_p);
  require(settings.min_p >= 0 && settings.min_p <= 1, "sample: min-p must be in [0, 1], got ",
          settings.min_p);
  require(settings.repetition_penalty > 0 && std::isfinite(settings.repetition_penalty),
          "sample: the repetition penalty must be above 0 and finite, got ", settings.repetition_penalty);
}

std::vector<double> probabilities(std::span<const float> logits, const SamplerSettings& settings,
                                  std::span<const std::int64_t> past) {
  check(settings);
  std::vector<double> result = drawable(logits, settings, past);
  const std::size_t best = likeliest(result);
  const double largest = result[best];
  for (std::size_t id = 0; id < result.size(); ++id) {
    // A temperature so small that the quotient overflows chooses the largest, as 0 does; none makes the
    // impossible possible.
    const double gap = result[id] - largest;
    result[id] = settings.temperature == 0 ? id == best
                 : gap == 0                ? 1
                 : std::isinf(gap)         ? 0
                                           : std::exp(gap / settings.temperature);
  }
  normalise(result);
  if (settings.top_k > 0) keep_likeliest(result, settings.top_k, 1);
  if (settings.top_p < 1) keep_likeliest(result, 0, settings.top_p);
  if (settings.min_p > 0) {
    const double least = settings.min_p * result[likeliest(result)];
    for (double& chance : result) chance = chance >= least ? chance : 0;
    normalise(result);
  }
  result.resize(logits.size());
  return result;
}

std::int64_t sample(std::span<const float> logits, const SamplerSettings& settings, Generator& random,
                    std::span<const std::int64_t> past) {
  if (settings.temperature == 0) {
    check(settings);
    return static_cast<std::int64_t>(likeliest(drawable(logits, settings, past)));
  }
  const std::vector<double> chances = probabilities(logits, settings, past);
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

std::vector<double> log_probabilities(std::span<const float> logits) {
  std::vector<double> result(logits.begin(), logits.end());
  const double largest = result[likeliest(result)];
  double total = 0;
  for (const double logit : result) total += std::exp(logit - largest);
  for (double& logit : result) logit -= largest + std::log(total);
  return result;
}

}  // namespace needle
