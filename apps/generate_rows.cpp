#include "apps/generate_rows.h"

#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/generate_speed.h"
#include "apps/terminal.h"
#include "apps/writing.h"
#include "needle/generate/beam.h"
#include "needle/generate/names_of_choices.h"
#include "needle/generate/text_stream.h"

namespace needle {

namespace {

/// Ids as text; where there is no vocabulary, as the numbers that they are.
std::string shown(const Tokenizer& tokenizer, std::span<const std::int64_t> ids) {
  if (tokenizer.kind() != Tokenizer::Kind::ids) return tokenizer.decode(ids);
  std::string numbers;
  for (const std::int64_t id : ids) numbers += std::to_string(id) + ' ';
  return numbers;
}

/// The texts of all rows, shown in their order: the first that is not finished as it comes.
class Screen {
 public:
  Screen(const std::vector<Prompt>& prompts, std::int64_t count, const SavedModel& saved,
         const RowsSettings& settings)
      : json_(settings.json), tokenizer_(saved.tokenizer) {
    require(tokenizer_.kind() != Tokenizer::Kind::ids || settings.stops.empty(),
            "generate: a model that reads ids alone knows no stop strings");
    const bool translates = saved.settings.model.kind == ModelKind::encoder_decoder;
    for (const Prompt& prompt : prompts) {
      for (std::int64_t i = 0; i < count; ++i)
        rows_.push_back(
            {TextStream(saved.tokenizer, settings.stops), prompt.text, translates ? "" : prompt.text, false});
    }
    show();
  }
  void push(std::size_t row, std::int64_t id) {
    const bool has_text = tokenizer_.kind() != Tokenizer::Kind::ids;
    rows_[row].waiting += has_text ? rows_[row].stream.push(id) : shown(tokenizer_, std::vector{id});
    show();
  }
  bool has_stopped(std::size_t row) const { return rows_[row].stream.has_stopped(); }
  /// Ends a row; `about` is what --json prints of it beside its texts.
  void finish(std::size_t row, nlohmann::json about) {
    Row& ended = rows_[row];
    ended.waiting += ended.stream.finish();
    ended.is_done = true;
    ended.about = std::move(about);
    show();
  }

 private:
  struct Row {
    TextStream stream;
    std::string prompt, waiting;
    bool is_done;
    nlohmann::json about = {};
  };

  void show() {
    while (next_ < rows_.size()) {
      Row& row = rows_[next_];
      if (json_) {
        if (!row.is_done) return;
        row.about["prompt"] = row.prompt;
        row.about["text"] = row.waiting;
        print_json(row.about);
      } else {
        std::cout << row.waiting;
        row.waiting.clear();
        if (!row.is_done) {
          std::cout.flush();
          return;
        }
        std::cout << std::endl;
      }
      row.waiting.clear();
      ++next_;
    }
  }

  bool json_;
  const Tokenizer& tokenizer_;
  std::vector<Row> rows_;
  std::size_t next_ = 0;
};

nlohmann::json json_of(const Answer& answer, const Tokenizer& tokenizer) {
  nlohmann::json alternatives = nlohmann::json::array();
  for (const std::vector<Choice>& choices : answer.alternatives) {
    nlohmann::json of_token = nlohmann::json::array();
    for (const Choice& choice : choices) {
      of_token.push_back({{"id", choice.id},
                          {"text", shown(tokenizer, std::vector{choice.id})},
                          {"log_probability", choice.log_probability}});
    }
    alternatives.push_back(std::move(of_token));
  }
  nlohmann::json json{{"ids", answer.ids},
                      {"log_probabilities", answer.log_probabilities},
                      {"ended", name_of_choice(answer.ended)}};
  if (!answer.alternatives.empty() && !answer.alternatives[0].empty()) json["alternatives"] = alternatives;
  return json;
}

std::vector<std::int64_t> ends_of(const SavedModel& saved, const RowsSettings& settings) {
  const std::optional<std::int64_t> end = end_of_text(saved.tokenizer, saved.settings.data.source);
  return settings.ends && end ? std::vector{*end} : std::vector<std::int64_t>{};
}

void write_beams(SavedModel& saved, const std::vector<Prompt>& prompts, const RowsSettings& settings,
                 Device device) {
  const bool translates = saved.settings.model.kind == ModelKind::encoder_decoder;
  BeamSettings search;
  search.beams = settings.beams;
  search.new_tokens = settings.new_tokens;
  search.length_penalty = settings.length_penalty;
  search.ends = ends_of(saved, settings);
  search.vocabulary = saved.tokenizer.vocabulary_size();
  search.decoding = settings.decoding;
  for (const Prompt& prompt : prompts) {
    const auto beams = beam_search(*saved.model, translates ? TokenRow{kBeginId} : prompt.ids, search, device,
                                   translates ? prompt.ids : TokenRow{});
    for (const Beam& beam : beams) {
      const std::size_t length = beam.ids.size() - (beam.ended == Ended::end_token ? 1 : 0);
      const std::string text = shown(saved.tokenizer, std::span(beam.ids).first(length));
      if (settings.json) {
        print_json({{"prompt", prompt.text},
                    {"text", (translates ? "" : prompt.text) + text},
                    {"ids", beam.ids},
                    {"log_probability", beam.log_probability},
                    {"score", beam.score},
                    {"ended", name_of_choice(beam.ended)}});
      } else {
        std::cout << fixed(beam.score, 3) << "  " << (translates ? "" : prompt.text) << text << '\n';
      }
    }
  }
}

}  // namespace

Prompt prompt_of(const SavedModel& saved, const std::string& text, const std::string& source,
                 std::int64_t line) {
  if (saved.settings.model.kind == ModelKind::encoder_decoder)
    return {text, saved.tokenizer.encode(text, source, line)};
  return {text, prompt_ids(saved.tokenizer, saved.settings.data.source, text, source, line)};
}

void write_rows(SavedModel& saved, const std::vector<Prompt>& prompts, const RowsSettings& settings,
                Device device) {
  RowsSettings wanted = settings;
  if (wanted.new_tokens == 0) wanted.new_tokens = saved.model->config().context;
  if (wanted.beams > 0) return write_beams(saved, prompts, wanted, device);
  const bool translates = saved.settings.model.kind == ModelKind::encoder_decoder;
  std::vector<TokenRow> rows;
  for (const Prompt& prompt : prompts)
    rows.insert(rows.end(), static_cast<std::size_t>(wanted.count), prompt.ids);
  Screen screen(prompts, wanted.count, saved, wanted);
  const Generator random(wanted.seed);
  GenerationSpeed speed(saved.model->config().resolved(), wanted.decoding);
  for (std::size_t first = 0; first < rows.size(); first += static_cast<std::size_t>(wanted.rows)) {
    const std::size_t last = std::min(rows.size(), first + static_cast<std::size_t>(wanted.rows));
    std::vector<TokenRow> batch(rows.begin() + static_cast<std::ptrdiff_t>(first),
                                rows.begin() + static_cast<std::ptrdiff_t>(last));
    GenerateSettings how;
    how.sampler = wanted.sampler;
    how.sampler.vocabulary = saved.tokenizer.vocabulary_size();
    how.new_tokens = wanted.new_tokens;
    how.ends = ends_of(saved, wanted);
    how.decoding = wanted.decoding;
    how.first_row = first;
    how.log_probabilities = wanted.json;
    how.alternatives = wanted.json ? wanted.alternatives : 0;
    if (translates) {
      how.sources = batch;
      batch.assign(batch.size(), TokenRow{kBeginId});
    }
    how.on_token = [&](std::int64_t row, std::int64_t id) {
      speed.note_token();
      // The name of an end token is no part of the text.
      if (std::ranges::count(how.ends, id) == 0) screen.push(first + static_cast<std::size_t>(row), id);
    };
    how.on_pass = [&](const Decoding& decoding) { speed.note_pass(decoding); };
    // Each row's own, since the text decides.
    for (std::size_t row = first; row < last && !wanted.stops.empty(); ++row) {
      how.rows.push_back(how);
      how.rows.back().stops = [&screen, row](std::span<const std::int64_t>) {
        return screen.has_stopped(row);
      };
    }
    const std::vector<Answer> answers =
        speed.watch([&] { return generate(*saved.model, batch, how, random, device); });
    for (std::size_t i = 0; i < answers.size(); ++i) {
      speed.count(batch[i].size(), answers[i].ids.size());
      screen.finish(first + i, json_of(answers[i], saved.tokenizer));
    }
  }
  if (wanted.speed) speed.tell();
}

}  // namespace needle
