#include "apps/writing.h"

#include <algorithm>

#include "needle/generate/generator.h"

namespace needle {

std::vector<std::int64_t> prompt_ids(const Tokenizer& tokenizer, DataSource source, const std::string& text) {
  if (source == DataSource::text && text.empty()) {
    return tokenizer.knows("\n") ? tokenizer.encode("\n", "the prompt") : std::vector{kFirstContentId};
  }
  if (source == DataSource::text) return tokenizer.encode(text, "the prompt");
  std::vector<std::int64_t> ids = tokenizer.encode(text, "the prompt");
  ids.insert(ids.begin(), kBeginId);
  return ids;
}

std::vector<Writing> write_texts(SequenceModel& model, const Tokenizer& tokenizer, DataSource source,
                                 const WritingSettings& settings, Device device) {
  const TokenRow prompt = prompt_ids(tokenizer, source, settings.prompt);
  GenerateSettings how;
  // Once the context is full the row ends, if nothing else ends it.
  how.new_tokens = settings.new_tokens == 0 ? model.config().context : settings.new_tokens;
  if (source != DataSource::text) how.ends = {kEndId};
  how.sampler.temperature = settings.temperature;
  how.sampler.vocabulary = tokenizer.vocabulary_size();
  const Generator random(settings.seed);
  std::vector<Writing> texts;
  constexpr std::int64_t kRowsAtOnce = 64;
  while (std::ssize(texts) < settings.count) {
    const std::int64_t rows = std::min<std::int64_t>(kRowsAtOnce, settings.count - std::ssize(texts));
    const std::vector prompts(static_cast<std::size_t>(rows), prompt);
    how.first_row = texts.size();
    for (const Answer& answer : generate(model, prompts, how, random, device))
      texts.push_back({tokenizer.decode(answer.ids), answer.ended == Ended::end_token});
  }
  return texts;
}

}  // namespace needle
