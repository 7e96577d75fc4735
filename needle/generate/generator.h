// Text from a model, token after token.
#pragma once

#include <functional>

#include "needle/generate/decoding.h"
#include "needle/generate/sampler.h"

namespace needle {

/// An id and what the model gives it: log softmax of its logits, before any setting of the sampler.
struct Choice {
  std::int64_t id = 0;
  double log_probability = 0;
};

/// Why a row ended.
enum class Ended {
  length,       ///< it has its new tokens
  end_token,    ///< it drew an end token
  stop_string,  ///< its RowSettings::stops said so
  context       ///< it fills the context
};

/// What one row wants.
struct RowSettings {
  SamplerSettings sampler;
  std::int64_t new_tokens = 64;    ///< at most
  std::vector<std::int64_t> ends;  ///< ids that end the row
  /// Asked after each token with all new ones so far; true ends the row.
  std::function<bool(std::span<const std::int64_t>)> stops = {};
};

/// What all rows share.
struct GenerateSettings : RowSettings {
  DecodingSettings decoding;
  std::vector<RowSettings> rows;   ///< of each row, where they differ; none: all as said above
  bool log_probabilities = false;  ///< note the model's for each token
  std::int64_t alternatives = 0;   ///< note so many of the likeliest beside each token
  std::vector<TokenRow> sources;   ///< what an encoder-decoder translates, one a row
  std::uint64_t first_row = 0;     ///< the number of row 0, where a larger set is done in parts
  /// Called with (row, id) as each token is drawn.
  std::function<void(std::int64_t, std::int64_t)> on_token = {};
  /// Called with the batch after the prompts and after each token were read.
  std::function<void(const Decoding&)> on_pass = {};
};

/// What a row was continued with.
struct Answer {
  TokenRow ids;  ///< new ones, the end token included
  Ended ended = Ended::length;
  std::vector<double> log_probabilities;          ///< one a token, if noted
  std::vector<std::vector<Choice>> alternatives;  ///< the likeliest at each token, if noted
};

/// Continues prompts of any lengths. Row r draws from the stream `random`.child(first_row + r), and a row
/// that has ended leaves the batch, so that no row changes another's answer.
std::vector<Answer> generate(SequenceModel& model, const std::vector<TokenRow>& prompts,
                             const GenerateSettings& settings, const Generator& random,
                             Device device = cpu());

}  // namespace needle
