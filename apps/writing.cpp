#include "apps/writing.h"

#include <algorithm>

#include "needle/generate/generator.h"

namespace needle {

std::vector<std::int64_t> prompt_ids(const Tokenizer& tokenizer, DataSource source, const std::string& text,
                                     const std::string& file, std::int64_t line) {
  const bool row = source != DataSource::text;
  const std::optional<std::int64_t> begin = row ? tokenizer.begin_id() : tokenizer.text_begin();
  if (!row && !begin && text.empty()) {
    return tokenizer.knows("\n") ? tokenizer.encode("\n", file) : std::vector{kFirstContentId};
  }
  std::vector<std::int64_t> ids = tokenizer.encode(text, file, line);
  if (begin) ids.insert(ids.begin(), *begin);
  return ids;
}

std::optional<std::int64_t> end_of_text(const Tokenizer& tokenizer, DataSource source) {
  // Published models end their texts, too.
  const bool learns_it = source != DataSource::text || tokenizer.byte_pairs() != nullptr;
  return learns_it ? tokenizer.end_id() : std::nullopt;
}

std::vector<Writing> write_texts(SequenceModel& model, const Tokenizer& tokenizer, DataSource source,
                                 const WritingSettings& settings, Device device) {
  const TokenRow prompt = prompt_ids(tokenizer, source, settings.prompt);
  GenerateSettings how;
  // Once the context is full the row ends, if nothing else ends it.
  how.new_tokens = settings.new_tokens == 0 ? model.config().context : settings.new_tokens;
  if (const std::optional<std::int64_t> end = end_of_text(tokenizer, source)) how.ends = {*end};
  how.sampler.temperature = settings.temperature;
  how.sampler.vocabulary = tokenizer.vocabulary_size();
  const Generator random(settings.seed);
  std::vector<Writing> texts;
  constexpr std::int64_t kRowsAtOnce = 64;
  while (std::ssize(texts) < settings.count) {
    const std::int64_t rows = std::min<std::int64_t>(kRowsAtOnce, settings.count - std::ssize(texts));
    const std::vector prompts(static_cast<std::size_t>(rows), prompt);
    how.first_row = texts.size();
    for (const Answer& answer : generate(model, prompts, how, random, device)) {
      const bool ended = answer.ended == Ended::end_token;
      texts.push_back(
          {tokenizer.decode(std::span(answer.ids).first(answer.ids.size() - (ended ? 1 : 0))), ended});
    }
  }
  return texts;
}

}  // namespace needle
