// Text that a trained model writes, for the report of a run and for `needle generate`.
#pragma once

#include <string>
#include <vector>

#include "needle/generate/sampler.h"
#include "needle/train/trainer.h"

namespace needle {

/// The ids that a model trained on data of the kind `source` reads for `text`: rows begin with BOS; a stream
/// knows no BOS, and an empty text stands for a line end, if it has any.
std::vector<std::int64_t> prompt_ids(const Tokenizer& tokenizer, DataSource source, const std::string& text,
                                     const std::string& file = "the prompt", std::int64_t line = 1);

/// The id that ends what such a model writes; none where it has learned no end.
std::optional<std::int64_t> end_of_text(const Tokenizer& tokenizer, DataSource source);

/// What to write.
struct WritingSettings {
  std::string prompt;           ///< continued; empty: a row from its beginning, or a text after a line end
  std::int64_t count = 1;       ///< texts
  std::int64_t new_tokens = 0;  ///< the most tokens of each; 0: all that the context has room for
  double temperature = 1;       ///< 0: always the likeliest token
  std::uint64_t seed = 1;
};

/// A text, without its prompt.
struct Writing {
  std::string text;
  bool ended = false;  ///< by EOS, which only models of rows learn
};

/// Texts by a model that was trained on data of the kind `source`. The same settings give the same texts.
std::vector<Writing> write_texts(SequenceModel& model, const Tokenizer& tokenizer, DataSource source,
                                 const WritingSettings& settings, Device device);

}  // namespace needle
