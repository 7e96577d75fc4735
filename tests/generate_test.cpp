// Choosing tokens, and generation: rows of a batch, ends, and what is computed at each step.
#include "needle/generate/generator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/agree.h"
#include "tests/decoders.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

using Prompts = std::vector<TokenRow>;

Prompts ids_of(const std::vector<Answer>& answers) {
  Prompts ids;
  for (const Answer& answer : answers) ids.push_back(answer.ids);
  return ids;
}

/// Greedy ones of so many tokens.
GenerateSettings greedy_settings(std::int64_t new_tokens) {
  GenerateSettings settings;
  settings.new_tokens = new_tokens;
  settings.sampler.temperature = 0;
  return settings;
}

/// A model whose rows say what they are told to, whatever they read: row r's step s gives script[r][s].
struct Scripted : SequenceModel {
  Scripted(Prompts lines, Device where) : script(std::move(lines)), device(where) { shape.vocabulary = 10; }
  Prompts script;
  Device device;
  std::int64_t steps = 0;
  ModelConfig shape;

  Tensor embed(const SequenceInput& input, const Pass&) override {
    return Tensor(NDArray::zeros({input.ids.size(0), input.ids.size(1), 1}, DType::f32, device));
  }
  /// Of each row the number that it had in the beginning, which the cache keeps.
  Tensor states(const Tensor& embedded, const SequenceInput&, const Pass& pass) override {
    std::vector<NDArray>& kept = pass.past->kept(0);
    if (kept.empty())
      kept.push_back(NDArray::arange(embedded.size(0), DType::f32, device).reshape({-1, 1, 1}));
    return Tensor(kept[0]);
  }
  Tensor head(const Tensor& states) override {
    std::vector<std::int64_t> said;
    for (const float row : states.array().to_vector<float>())
      said.push_back(script.at(static_cast<std::size_t>(row)).at(static_cast<std::size_t>(steps)));
    ++steps;
    return Tensor(one_hot(NDArray::from(said, {states.size(0), 1}, device), vocabulary_size()));
  }
  Cache empty_state(std::int64_t batch, std::int64_t, std::optional<DType>) override {
    return Cache(1, batch, device);
  }
  const ModelConfig& config() const override { return shape; }
  std::int64_t context() const override { return 0; }
  void list(Parts&) override {}
};

class GenerateTest : public OnDevice {
 protected:
  Decoder model() const { return make_decoder(various_decoders()[0].config, device(), DType::f32); }
  std::vector<Answer> answers(SequenceModel& to, const Prompts& prompts, const GenerateSettings& settings,
                              std::uint64_t seed = 1) const {
    return generate(to, prompts, settings, Generator(seed), device());
  }
  Prompts drawn(SequenceModel& to, const Prompts& prompts, const GenerateSettings& settings,
                std::uint64_t seed = 1) const {
    return ids_of(answers(to, prompts, settings, seed));
  }
};

const Prompts kPrompts{{1, 4, 12, 7}, {9}, {5, 5, 2, 6, 11}};

TEST_P(GenerateTest, BR059_EachRowEndsByItself) {
  Scripted script({{7, 2, 9, 9, 9}, {8, 8, 2, 5, 5}}, device());
  GenerateSettings settings = greedy_settings(5);
  settings.ends = {2};
  std::vector<std::pair<std::int64_t, std::int64_t>> told;
  settings.on_token = [&told](std::int64_t row, std::int64_t id) { told.emplace_back(row, id); };
  std::vector<std::int64_t> rows;
  settings.on_pass = [&rows](const Decoding& batch) { rows.push_back(std::ssize(batch.rows())); };
  // An end token inside a prompt does not end its row.
  const std::vector<Answer> both = answers(script, {{1, 2, 1}, {1}}, settings);
  EXPECT_EQ(ids_of(both), (Prompts{{7, 2}, {8, 8, 2}}));
  EXPECT_EQ(both[0].ended, Ended::end_token);
  EXPECT_EQ(script.steps, 3);
  EXPECT_EQ(rows, (std::vector<std::int64_t>{2, 2, 1})) << "a row that has ended leaves the batch";
  EXPECT_EQ(told,
            (std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 7}, {1, 8}, {0, 2}, {1, 8}, {1, 2}}));
  Scripted endless({{7, 2, 9, 9, 9}}, device());
  settings.ends = {};
  EXPECT_EQ(drawn(endless, {{1}}, settings), (Prompts{{7, 2, 9, 9, 9}}));
}

TEST_P(GenerateTest, RowsHaveSettingsOfTheirOwn) {
  Scripted script({{7, 2, 9, 9, 9}, {8, 8, 2, 5, 5}, {1, 3, 4, 6, 6}, {5, 5, 5, 5, 5}}, device());
  GenerateSettings settings;
  settings.rows.assign(4, greedy_settings(5));
  settings.rows[0].new_tokens = 3;
  settings.rows[1].ends = {4, 2};
  settings.rows[2].stops = [](std::span<const std::int64_t> ids) {
    return ids.size() >= 2 && ids.back() == 4;
  };
  settings.rows[3].new_tokens = 0;
  const std::vector<Answer> all = answers(script, {{1}, {1}, {1}, {1}}, settings);
  EXPECT_EQ(ids_of(all), (Prompts{{7, 2, 9}, {8, 8, 2}, {1, 3, 4}, {}}));
  EXPECT_EQ(all[0].ended, Ended::length);
  EXPECT_EQ(all[1].ended, Ended::end_token);
  EXPECT_EQ(all[2].ended, Ended::stop_string);
  settings.rows.pop_back();
  EXPECT_TRUE(contains(error_of([&] {
                         answers(script, {{1}, {1}, {1}, {1}}, settings);
                       }),
                       {"3 settings", "4 prompts"}));
}

TEST_P(GenerateTest, RowsOfABatchEqualRowsAlone) {
  for (const auto& [name, config] : various_decoders()) {
    Decoder decoder = make_decoder(config, device(), DType::f32);
    const Prompts together = drawn(decoder, kPrompts, greedy_settings(6));
    for (std::size_t row = 0; row < kPrompts.size(); ++row)
      EXPECT_EQ(drawn(decoder, {kPrompts[row]}, greedy_settings(6))[0], together[row]) << name;
  }
}

TEST_P(GenerateTest, GreedyIsTheArgmaxOfTheFullPass) {
  Decoder decoder = model();
  const Prompts all = drawn(decoder, kPrompts, greedy_settings(6));
  for (std::size_t row = 0; row < kPrompts.size(); ++row) {
    TokenRow text = kPrompts[row];
    for (const std::int64_t id : all[row]) {
      EXPECT_EQ(argmax(logits_alone(decoder, text, device())[-1]).item(), id);
      text.push_back(id);
    }
  }
}

TEST_P(GenerateTest, TheSeedFixesWhatIsDrawnAndCompanionsDoNotChangeIt) {
  Decoder decoder = model();
  GenerateSettings settings;
  settings.new_tokens = 6;
  EXPECT_EQ(drawn(decoder, kPrompts, settings), drawn(decoder, kPrompts, settings));
  EXPECT_NE(drawn(decoder, kPrompts, settings), drawn(decoder, kPrompts, settings, 2));
  const Prompts twice = drawn(decoder, {kPrompts[0], kPrompts[0]}, settings);
  EXPECT_EQ(drawn(decoder, kPrompts, settings)[0], twice[0]);
  EXPECT_NE(twice[0], twice[1]) << "every row has a stream of its own";
  settings.first_row = 1;
  EXPECT_EQ(drawn(decoder, {kPrompts[0]}, settings)[0], twice[1]) << "a set may be done in parts";
}

TEST_P(GenerateTest, LogProbabilitiesAreTheModelsWhateverTheSampler) {
  Decoder decoder = model();
  GenerateSettings settings;
  settings.new_tokens = 4;
  settings.sampler.temperature = 3;
  settings.sampler.top_k = 2;
  settings.alternatives = 20;  // more than there are ids
  settings.log_probabilities = true;
  for (const Answer& answer : answers(decoder, kPrompts, settings)) {
    ASSERT_EQ(answer.log_probabilities.size(), answer.ids.size());
    for (std::size_t i = 0; i < answer.ids.size(); ++i) {
      const std::vector<Choice>& choices = answer.alternatives[i];
      ASSERT_EQ(choices.size(), 13u);
      double total = 0;
      for (std::size_t c = 0; c < choices.size(); ++c) {
        total += std::exp(choices[c].log_probability);
        if (c > 0) {
          EXPECT_LE(choices[c].log_probability, choices[c - 1].log_probability);
        }
        if (choices[c].id == answer.ids[i]) {
          EXPECT_EQ(choices[c].log_probability, answer.log_probabilities[i]);
          EXPECT_LT(c, 2u) << "top-k";
        }
      }
      EXPECT_NEAR(total, 1, 1e-12);
    }
  }
}

/// Notes how many positions the head projects at a time.
struct HeadWatch final : Observer {
  std::vector<std::int64_t> positions;
  void after(const OpEvent& event) override {
    const NDArray& output = event.outputs[0];
    if (std::string(event.op) == "matmul_transposed") positions.push_back(output.count() / output.size(-1));
  }
};

TEST_P(GenerateTest, S40_OnlyTheLastPositionIsProjectedToTheVocabulary) {
  Decoder decoder = model();
  for (const PaddingSide side : {PaddingSide::left, PaddingSide::right}) {
    HeadWatch watch;
    const ObserverScope scope(&watch);
    GenerateSettings settings = greedy_settings(4);
    settings.decoding.padding = side;
    drawn(decoder, kPrompts, settings);
    EXPECT_EQ(watch.positions, (std::vector<std::int64_t>{3, 3, 3, 3}));
    // Training scores all positions in one pass.
    watch.positions.clear();
    decoder.forward(padded(kPrompts, PaddingSide::right, device()));
    EXPECT_EQ(watch.positions, std::vector<std::int64_t>{15});
  }
}

TEST_P(GenerateTest, BR061_LogitsThatAreNotNumbersNameRowAndStep) {
  Decoder decoder = model();
  for (Parameter& parameter : decoder.parameters()) {
    if (parameter.name == "position_embedding.weight") {
      NDArray table = parameter.tensor.array().copy();
      table.slice(0, 6, 11).assign(NDArray::scalar(kNotANumber, DType::f32, device()));
      parameter.tensor.set_array(table);
    }
  }
  GenerateSettings settings;
  settings.new_tokens = 4;
  EXPECT_TRUE(
      contains(error_of([&] { drawn(decoder, kPrompts, settings); }), {"row 2", "token 2", "not a number"}));
}

TEST_P(GenerateTest, ARowThatFillsTheContextEndsAndSaysSo) {
  Decoder decoder = model();  // of 11 positions
  const std::vector<Answer> all = answers(decoder, kPrompts, greedy_settings(20));
  for (std::size_t row = 0; row < all.size(); ++row) {
    EXPECT_EQ(all[row].ended, Ended::context);
    // The last one drawn is not read again.
    EXPECT_EQ(all[row].ids.size(), 11 - kPrompts[row].size() + 1);
    EXPECT_EQ(drawn(decoder, {kPrompts[row]}, greedy_settings(20))[0], all[row].ids);
  }
  EXPECT_EQ(answers(decoder, kPrompts, greedy_settings(7))[2].ended, Ended::length);
}

TEST_P(GenerateTest, ImpossibleRequestsAreErrors) {
  Decoder decoder = model();
  const GenerateSettings settings = greedy_settings(3);
  EXPECT_TRUE(contains(error_of([&] { drawn(decoder, {TokenRow(12, 1)}, settings); }),
                       {"prompt of 12", "context of 11", "recompute"}));
  EXPECT_TRUE(contains(error_of([&] { drawn(decoder, {{1}, {}}, settings); }), {"prompt"}));
  EXPECT_TRUE(drawn(decoder, {}, settings).empty());
  EXPECT_EQ(drawn(decoder, {{1}}, greedy_settings(0)), Prompts(1));
  GenerateSettings sources = settings;
  sources.sources = {{1}};
  EXPECT_TRUE(contains(error_of([&] { drawn(decoder, {{1}}, sources); }), {"encoder-decoder"}));
  GenerateSettings hot = settings;
  hot.sampler.temperature = -1;
  EXPECT_TRUE(contains(error_of([&] { drawn(decoder, {{1}}, hot); }), {"temperature"}));
}

TEST_P(GenerateTest, NothingIsRecordedOrKept) {
  Decoder decoder = model();
  GenerateSettings settings;
  settings.new_tokens = 4;
  drawn(decoder, kPrompts, settings);
  const std::size_t live = device()->memory_stats().live;
  drawn(decoder, kPrompts, settings);
  EXPECT_EQ(device()->memory_stats().live, live);
}

INSTANTIATE_TEST_SUITE_P(All, GenerateTest, testing::ValuesIn(all_devices()), device_name);

}  // namespace
}  // namespace needle
