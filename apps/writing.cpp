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
  const std::vector<std::int64_t> prompt = prompt_ids(tokenizer, source, settings.prompt);
  const std::int64_t context = model.config().context,
                     room = context - static_cast<std::int64_t>(prompt.size()) + 1;
  require(room > 0, "generate: a prompt of ", prompt.size(), " tokens does not fit the context of ", context);
  GenerateSettings how;
  how.new_tokens = settings.new_tokens == 0 ? room : settings.new_tokens;
  how.end = source == DataSource::text ? -1 : kEndId;
  how.pad = kPadId;
  how.sampler = {settings.temperature, tokenizer.vocabulary_size()};
  Generator random(settings.seed);
  std::vector<Writing> texts;
  constexpr std::int64_t kRowsAtOnce = 64;
  while (std::ssize(texts) < settings.count) {
    const std::int64_t rows = std::min<std::int64_t>(kRowsAtOnce, settings.count - std::ssize(texts));
    const std::vector prompts(static_cast<std::size_t>(rows), prompt);
    for (const auto& ids : generate(model, prompts, how, random, device)) {
      texts.push_back({tokenizer.decode(ids), !ids.empty() && ids.back() == kEndId});
    }
  }
  return texts;
}

}  // namespace needle
