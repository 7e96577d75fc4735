// Text from a model: a prompt in one piece, then token after token through the key/value cache.
#pragma once

#include <functional>

#include "needle/generate/sampler.h"
#include "needle/models/sequence_model.h"

namespace needle {

/// When to stop, and how to draw.
struct GenerateSettings {
  std::int64_t new_tokens = 64;
  std::int64_t end = -1;  ///< the id that ends a row; -1: none
  std::int64_t pad = 0;   ///< what fills up shorter prompts
  SamplerSettings sampler;
  /// Called with (row, id) as each token is drawn.
  std::function<void(std::int64_t, std::int64_t)> on_token = {};
};

/// New tokens of each row, its end token included. Rows are prompts of any lengths, left-padded into one
/// batch; a row that has ended no longer draws, and row r draws from a stream of its own, so that no row
/// changes another's answer. Prompt and answer together must fit the model's context.
std::vector<std::vector<std::int64_t>> generate(SequenceModel& model,
                                                const std::vector<std::vector<std::int64_t>>& prompts,
                                                const GenerateSettings& settings, Generator& random,
                                                Device device = cpu());

}  // namespace needle
