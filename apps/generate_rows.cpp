#include "apps/generate_rows.h"

#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/terminal.h"
#include "apps/writing.h"
#include "needle/counters.h"
#include "needle/generate/beam.h"
#include "needle/generate/text_stream.h"

namespace needle {

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

const char* word_of(Ended ended) {
  switch (ended) {
    case Ended::length:
      return "length";
    case Ended::end_token:
      return "end_token";
    case Ended::stop_string:
      return "stop_string";
    case Ended::context:
      return "context";
  }
  return "";
}

/// Adds up the operations of a sequence's attention over itself.
struct AttentionOperations final : Observer {
  double operations = 0;
  void after(const OpEvent& event) override {
    if (std::string_view(event.op) == "attention" && event.path.find(".cross") == std::string::npos)
      operations += tally_of(event).operations;
  }
};

/// What the passes of all batches took.
struct Speed {
  double started = now(), batch_started = 0, pass_started = 0;
  double prompt_seconds = 0, decode_seconds = 0, first_token = 0;
  std::int64_t prompt_tokens = 0, passes = 0, decoded = 0, rebuilds = 0;
  std::size_t cache_bytes = 0;
  std::int64_t cache_rows = 0, cache_positions = 0;
  AttentionOperations attention;
  double pairs_by_formula = 0;
  bool is_decoding = false;

  void begin_batch() {
    is_decoding = false;
    pass_started = now();
  }
  /// After the prompts, and after each token, were read.
  void note(const Decoding& batch) {
    const double seconds = now() - pass_started;
    if (!is_decoding) {
      prompt_seconds += seconds;
      for (const TokenRow& row : batch.rows()) prompt_tokens += std::ssize(row);
      if (batch.cache_bytes() > cache_bytes) {
        cache_bytes = batch.cache_bytes();
        cache_rows = std::ssize(batch.rows());
        cache_positions = batch.cache_longest();
      }
      attention.operations = 0;
    } else {
      decode_seconds += seconds;
      decoded += std::ssize(batch.rows());
      ++passes;
    }
    rebuilds += batch.rebuilds() > 1;
    is_decoding = true;
    pass_started = now();
  }
};

void tell(const Speed& speed, const ModelConfig& model, const RowsSettings& settings, double pairs) {
  const auto row = [](const char* label, const std::string& text) {
    std::cerr << label << std::string(15 - std::string_view(label).size(), ' ') << text << '\n';
  };
  const auto rate = [](std::int64_t tokens, double seconds) {
    return with_commas(static_cast<std::int64_t>(static_cast<double>(tokens) / std::max(seconds, 1e-9))) +
           " tokens/s";
  };
  std::cerr << '\n';
  row("prompt", with_commas(speed.prompt_tokens) + " tokens in " + fixed(1e3 * speed.prompt_seconds, 1) +
                    " ms, " + rate(speed.prompt_tokens, speed.prompt_seconds));
  row("first token", "after " + fixed(1e3 * (speed.first_token - speed.started), 1) + " ms");
  if (speed.passes > 0) {
    row("decoding", with_commas(speed.decoded) + " tokens in " + fixed(speed.decode_seconds, 2) + " s, " +
                        rate(speed.decoded, speed.decode_seconds) + ", " +
                        fixed(1e3 * speed.decode_seconds / static_cast<double>(speed.passes), 2) +
                        " ms a pass");
  }
  if (!settings.decoding.cache) return row("cache", "none");
  if (model.kind == ModelKind::decoder) {
    const DType storage = settings.decoding.storage.value_or(DType::f32);
    const std::int64_t width = model.width / model.heads;
    const std::int64_t formula = 2 * speed.cache_rows * model.layers * speed.cache_positions *
                                 model.key_value_heads * width * static_cast<std::int64_t>(size_of(storage));
    row("cache", with_commas(static_cast<std::int64_t>(speed.cache_bytes)) + " bytes; 2 x " +
                     with_commas(speed.cache_rows) + " rows x " + with_commas(model.layers) + " layers x " +
                     with_commas(speed.cache_positions) + " positions x " +
                     with_commas(model.key_value_heads) + " heads x " + with_commas(width) + " x " +
                     with_commas(static_cast<std::int64_t>(size_of(storage))) + " = " + with_commas(formula));
    if (speed.rebuilds == 0 && model.window == 0) {
      row("pairs", with_commas(static_cast<std::int64_t>(pairs)) +
                       " a layer and head counted; GP + G(G+1)/2 = " +
                       with_commas(static_cast<std::int64_t>(speed.pairs_by_formula)));
    }
  } else {
    row("state", with_commas(static_cast<std::int64_t>(speed.cache_bytes)) + " bytes for " +
                     with_commas(speed.cache_rows) + " rows");
  }
}

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
  nlohmann::json json{
      {"ids", answer.ids}, {"log_probabilities", answer.log_probabilities}, {"ended", word_of(answer.ended)}};
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
                    {"ended", word_of(beam.ended)}});
      } else {
        std::cout << fixed(beam.score, 3) << "  " << (translates ? "" : prompt.text) << text << '\n';
      }
    }
  }
}

}  // namespace

Prompt prompt_of(const SavedModel& saved, const std::string& text) {
  if (saved.settings.model.kind == ModelKind::encoder_decoder)
    return {text, saved.tokenizer.encode(text, "the prompt")};
  return {text, prompt_ids(saved.tokenizer, saved.settings.data.source, text)};
}

void write_rows(SavedModel& saved, const std::vector<Prompt>& prompts, const RowsSettings& settings,
                Device device) {
  RowsSettings wanted = settings;
  if (wanted.new_tokens == 0) wanted.new_tokens = saved.model->config().context;
  if (wanted.beams > 0) return write_beams(saved, prompts, wanted, device);
  const bool translates = saved.settings.model.kind == ModelKind::encoder_decoder;
  const ModelConfig model = saved.model->config().resolved();
  std::vector<TokenRow> rows;
  for (const Prompt& prompt : prompts)
    rows.insert(rows.end(), static_cast<std::size_t>(wanted.count), prompt.ids);
  Screen screen(prompts, wanted.count, saved, wanted);
  const Generator random(wanted.seed);
  Speed speed;
  double pairs = 0;
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
      if (speed.first_token == 0) speed.first_token = now();
      // The name of an end token is no part of the text.
      if (std::ranges::count(how.ends, id) == 0) screen.push(first + static_cast<std::size_t>(row), id);
    };
    how.on_pass = [&](const Decoding& decoding) { speed.note(decoding); };
    // Each row's own, since the text decides.
    for (std::size_t row = first; row < last && !wanted.stops.empty(); ++row) {
      how.rows.push_back(how);
      how.rows.back().stops = [&screen, row](std::span<const std::int64_t>) {
        return screen.has_stopped(row);
      };
    }
    speed.begin_batch();
    std::vector<Answer> answers;
    {
      const ObserverScope scope(&speed.attention);
      answers = generate(*saved.model, batch, how, random, device);
    }
    if (model.kind == ModelKind::decoder) {
      const double width = static_cast<double>(model.width) / static_cast<double>(model.heads);
      pairs += speed.attention.operations / (4 * width) / static_cast<double>(model.layers * model.heads);
    }
    for (std::size_t i = 0; i < answers.size(); ++i) {
      const auto steps = std::max(0.0, static_cast<double>(answers[i].ids.size()) - 1);
      speed.pairs_by_formula += steps * static_cast<double>(batch[i].size()) + steps * (steps + 1) / 2;
      screen.finish(first + i, json_of(answers[i], saved.tokenizer));
    }
  }
  if (wanted.speed) tell(speed, model, wanted, pairs);
}

}  // namespace needle
