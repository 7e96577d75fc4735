// Choosing the next token from logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "needle/random.h"

namespace needle {

/// How a token is drawn.
struct SamplerSettings {
  double temperature = 1;  ///< 0: always the likeliest (greedy)
  /// Ids from here on have no text and are never drawn (a table padded past its tokenizer); 0: none.
  std::int64_t vocabulary = 0;
};

/// The probabilities that `settings` give the logits, normalised in float64; greedy puts all on the first
/// largest. NaN among the logits, or none above -infinity, is an Error, as are a negative or NaN temperature.
std::vector<double> probabilities(std::span<const float> logits, const SamplerSettings& settings);

/// Draws an id; greedy uses no random number. An id of probability 0 is never drawn.
std::int64_t sample(std::span<const float> logits, const SamplerSettings& settings, Generator& random);

}  // namespace needle
