// Choosing the next token from logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "needle/random.h"

namespace needle {

/// How a token is drawn. In this order: the penalty, the temperature, then top_k, top_p and min_p, of which
/// each keeps a part of what the one before has left.
struct SamplerSettings {
  double temperature = 1;  ///< 0: always the likeliest (greedy)
  /// Ids from here on have no text and are never drawn (a table padded past its tokenizer); 0: none.
  std::int64_t vocabulary = 0;
  std::int64_t top_k = 0;  ///< only so many of the likeliest, the lower id of equals; 0: all
  double top_p = 1;        ///< the likeliest whose sum reaches this, at least one (Holtzman et al. 2020)
  double min_p = 0;        ///< those at least so likely as this part of the likeliest
  /// Divides positive logits of ids that the row holds already, multiplies negative ones (Keskar et al. 2019,
  /// section 4.1); 1: none.
  double repetition_penalty = 1;
};

/// Throws on settings that mean nothing.
void check(const SamplerSettings& settings);

/// The probabilities that `settings` give the logits after the tokens `past`, normalised in float64; greedy
/// puts all on the first largest. NaN among the logits, or none above -infinity, is an Error, as are settings
/// that mean nothing.
std::vector<double> probabilities(std::span<const float> logits, const SamplerSettings& settings,
                                  std::span<const std::int64_t> past = {});

/// Draws an id; greedy uses no random number. An id of probability 0 is never drawn.
std::int64_t sample(std::span<const float> logits, const SamplerSettings& settings, Generator& random,
                    std::span<const std::int64_t> past = {});

/// log softmax of the logits in float64: what the model gives each id before any setting changes it.
std::vector<double> log_probabilities(std::span<const float> logits);

}  // namespace needle
