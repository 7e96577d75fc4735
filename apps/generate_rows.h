// Prompts to texts: what `needle generate` prints, row by row, and what it measures.
#pragma once

#include <string>
#include <vector>

#include "apps/saved_model.h"
#include "needle/generate/generator.h"

namespace needle {

/// How prompts are continued, as the command line says it.
struct RowsSettings {
  SamplerSettings sampler;
  std::int64_t new_tokens = 0;  ///< of each text; 0: all that fit the context
  std::int64_t count = 1;       ///< texts of each prompt
  std::int64_t rows = 64;       ///< of one batch
  std::int64_t beams = 0;       ///< 0: tokens are drawn, or the likeliest
  double length_penalty = 0.6;
  std::vector<std::string> stops;
  bool ends = true;  ///< at the end token, where the model knows one
  std::uint64_t seed = 1;
  std::int64_t alternatives = 0;  ///< shown with --json
  DecodingSettings decoding;
  bool json = false;
  bool speed = true;  ///< tell it on stderr
};

/// A prompt as text, where it was given as that, and as the ids that the model reads.
struct Prompt {
  std::string text;
  TokenRow ids;
};
/// The prompt of a text: an encoder-decoder translates it. Errors name `source` and its line.
Prompt prompt_of(const SavedModel& saved, const std::string& text, const std::string& source = "the prompt",
                 std::int64_t line = 1);

/// Writes each prompt with its continuations to stdout, the first as it comes.
void write_rows(SavedModel& saved, const std::vector<Prompt>& prompts, const RowsSettings& settings,
                Device device);

}  // namespace needle
