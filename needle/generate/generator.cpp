#include "needle/generate/generator.h"

#include <algorithm>

namespace needle {

namespace {

std::vector<Choice> likeliest(const std::vector<double>& log_probabilities, std::int64_t count) {
  std::vector<Choice> choices;
  for (std::size_t id = 0; id < log_probabilities.size(); ++id)
    choices.push_back({static_cast<std::int64_t>(id), log_probabilities[id]});
  const auto kept = choices.begin() + std::min<std::int64_t>(count, std::ssize(choices));
  std::partial_sort(choices.begin(), kept, choices.end(), [](const Choice& a, const Choice& b) {
    return a.log_probability > b.log_probability || (a.log_probability == b.log_probability && a.id < b.id);
  });
  choices.erase(kept, choices.end());
  return choices;
}

/// Adds the next token to an answer.
std::int64_t draw(std::span<const float> logits, const GenerateSettings& settings, const RowSettings& row,
                  const TokenRow& past, Generator& random, Answer& answer) {
  const std::int64_t id = sample(logits, row.sampler, random, past);
  answer.ids.push_back(id);
  if (settings.log_probabilities || settings.alternatives > 0) {
    const std::vector<double> all = log_probabilities(logits);
    answer.log_probabilities.push_back(all[static_cast<std::size_t>(id)]);
    answer.alternatives.push_back(likeliest(all, settings.alternatives));
  }
  return id;
}

/// Why a row ends with its last token, if it does. `is_full`: what it has, that token included, fills the
/// context.
std::optional<Ended> end_of(const Answer& answer, const RowSettings& row, bool is_full) {
  if (std::find(row.ends.begin(), row.ends.end(), answer.ids.back()) != row.ends.end())
    return Ended::end_token;
  if (row.stops && row.stops(answer.ids)) return Ended::stop_string;
  if (std::ssize(answer.ids) >= row.new_tokens) return Ended::length;
  if (is_full) return Ended::context;
  return {};
}

}  // namespace

std::vector<Answer> generate(SequenceModel& model, const std::vector<TokenRow>& prompts,
                             const GenerateSettings& settings, const Generator& random, Device device) {
  require(settings.rows.empty() || settings.rows.size() == prompts.size(), "generate: ", settings.rows.size(),
          " settings of rows for ", prompts.size(), " prompts");
  const auto wanted = [&](std::size_t row) -> const RowSettings& {
    return settings.rows.empty() ? settings : settings.rows[row];
  };
  std::vector<Answer> answers(prompts.size());
  std::vector<Generator> streams;
  std::vector<std::size_t> going;  // which answer each row of the batch is
  DecodingSettings decoding = settings.decoding;
  decoding.room = 0;
  std::vector<TokenRow> rows, sources;
  for (std::size_t row = 0; row < prompts.size(); ++row) {
    check(wanted(row).sampler);
    streams.push_back(random.child(settings.first_row + row));
    if (wanted(row).new_tokens <= 0) continue;
    decoding.room = std::max(decoding.room, wanted(row).new_tokens);
    going.push_back(row);
    rows.push_back(prompts[row]);
    if (!settings.sources.empty()) sources.push_back(settings.sources.at(row));
  }
  if (going.empty()) return answers;

  Decoding batch(model, std::move(rows), decoding, device, std::move(sources));
  while (true) {
    if (settings.on_pass) settings.on_pass(batch);
    const std::vector<float> logits = batch.logits().to_vector<float>();
    const auto width = static_cast<std::size_t>(batch.logits().size(1));
    std::vector<std::int64_t> next, kept;
    for (std::size_t i = 0; i < going.size(); ++i) {
      const std::size_t row = going[i];
      Answer& answer = answers[row];
      try {
        draw({logits.data() + i * width, width}, settings, wanted(row), batch.rows()[i], streams[row],
             answer);
      } catch (const Error& error) {
        fail("generate: row ", row, ", new token ", answer.ids.size(), ": ", error.what());
      }
      const std::int64_t id = answer.ids.back();
      if (settings.on_token) settings.on_token(static_cast<std::int64_t>(row), id);
      if (const std::optional<Ended> ended = end_of(answer, wanted(row), batch.is_full(i))) {
        answer.ended = *ended;
        continue;
      }
      kept.push_back(static_cast<std::int64_t>(i));
      next.push_back(id);
    }
    if (kept.empty()) return answers;
    if (kept.size() < going.size()) {
      batch.select(kept);
      std::vector<std::size_t> still;
      for (const std::int64_t i : kept) still.push_back(going[static_cast<std::size_t>(i)]);
      going = std::move(still);
    }
    batch.push(next);
  }
}

}  // namespace needle
