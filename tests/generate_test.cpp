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
constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Logits = std::vector<float>;
using Prompts = std::vector<std::vector<std::int64_t>>;

TEST(Sampler, BR058_TemperatureZeroIsGreedyAndTinyOnesStayFinite) {
  const Logits logits{0, 100, 99};
  Generator random(1);
  for (const double temperature : {0.0, 1e-8, 1e-39, 5e-324}) {
    EXPECT_EQ(sample(logits, {temperature}, random), 1);
    const std::vector<double> chances = probabilities(logits, {temperature});
    EXPECT_EQ(chances, (std::vector<double>{0, 1, 0})) << temperature;
  }
  const std::vector<double> chances = probabilities(logits, {1});
  EXPECT_NEAR(chances[0], 2.7195934554254203e-44, 1e-50);
  EXPECT_NEAR(chances[1], 0.7310585786300049, 1e-15);
  EXPECT_NEAR(chances[2], 0.26894142136999516, 1e-15);
  for (const double temperature : {kNotANumber, -1.0})
    EXPECT_TRUE(contains(error_of([&] { sample(logits, {temperature}, random); }), {"temperature"}));
  const std::vector<double> hot = probabilities(logits, {std::numeric_limits<double>::infinity()});
  for (const double chance : hot) EXPECT_NEAR(chance, 1.0 / 3, 1e-15);
}

TEST(Sampler, BR061_NaNIsAnErrorAndIdsWithoutTextAreNeverDrawn) {
  Generator random(1);
  const Logits bad{static_cast<float>(kNotANumber), 1, 2}, none{-kInfinity, -kInfinity};
  EXPECT_TRUE(contains(error_of([&] { sample(bad, {}, random); }), {"id 0", "not a number"}));
  EXPECT_TRUE(contains(error_of([&] { sample(none, {}, random); }), {"finite"}));
  const Logits padded{0, 1, 2, 3, 4, 9, 9, 9};
  SamplerSettings settings{0, 5};
  EXPECT_EQ(sample(padded, settings, random), 4);
  settings.temperature = 1;
  const std::vector<double> chances = probabilities(padded, settings);
  for (std::size_t id = 5; id < 8; ++id) EXPECT_EQ(chances[id], 0);
  for (int i = 0; i < 200; ++i) EXPECT_LT(sample(padded, settings, random), 5);
}

TEST(Sampler, GreedyTakesTheFirstOfEquals) {
  Generator random(1);
  EXPECT_EQ(sample(Logits{1, 3, 3, 2}, {0}, random), 1);
  EXPECT_EQ(random.position(), 0) << "greedy uses no random number";
}

TEST(Sampler, DrawsByTheProbabilities) {
  const Logits logits{0, std::log(2.0f), std::log(5.0f), -kInfinity};
  for (const double temperature : {1.0, 2.0, 0.5}) {
    const std::vector<double> chances = probabilities(logits, {temperature});
    EXPECT_NEAR(chances[2] / chances[0], std::pow(5, 1 / temperature), 1e-5);
    EXPECT_EQ(chances[3], 0);
    Generator random(7);
    constexpr int kDraws = 20000;
    std::vector<int> counts(4);
    for (int i = 0; i < kDraws; ++i)
      ++counts[static_cast<std::size_t>(sample(logits, {temperature}, random))];
    for (std::size_t id = 0; id < 4; ++id) {
      const double deviation = std::sqrt(kDraws * chances[id] * (1 - chances[id]));
      EXPECT_NEAR(counts[id], kDraws * chances[id], 5 * deviation);
    }
  }
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
  Tensor states(const Tensor& embedded, const SequenceInput&, const Pass&) override { return embedded; }
  Tensor head(const Tensor& states) override {
    std::vector<std::int64_t> said;
    for (const auto& line : script) said.push_back(line.at(static_cast<std::size_t>(steps)));
    ++steps;
    return Tensor(one_hot(NDArray::from(said, {states.size(0), 1}, device), vocabulary_size()));
  }
  Cache empty_state(std::int64_t batch, std::int64_t longest) override {
    return Cache(1, batch, 1, longest, 1, DType::f32, device);
  }
  const ModelConfig& config() const override { return shape; }
  std::int64_t context() const override { return 0; }
  void list(Parts&) override {}
};

class GenerateTest : public OnDevice {
 protected:
  Decoder model() const { return make_decoder(various_decoders()[0].config, device(), DType::f32); }
};

const Prompts kPrompts{{1, 4, 12, 7}, {9}, {5, 5, 2, 6, 11}};

TEST_P(GenerateTest, BR059_EachRowEndsByItself) {
  Scripted script({{7, 2, 9, 9, 9}, {8, 8, 2, 5, 5}}, device());
  GenerateSettings settings;
  settings.new_tokens = 5;
  settings.end = 2;
  settings.sampler.temperature = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> told;
  settings.on_token = [&told](std::int64_t row, std::int64_t id) { told.emplace_back(row, id); };
  Generator random(1);
  // An end token inside a prompt does not end its row.
  EXPECT_EQ(generate(script, {{1, 2, 1}, {1}}, settings, random, device()), (Prompts{{7, 2}, {8, 8, 2}}));
  EXPECT_EQ(script.steps, 3);
  EXPECT_EQ(told,
            (std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 7}, {1, 8}, {0, 2}, {1, 8}, {1, 2}}));
  Scripted endless({{7, 2, 9, 9, 9}}, device());
  settings.end = -1;
  EXPECT_EQ(generate(endless, {{1}}, settings, random, device()), (Prompts{{7, 2, 9, 9, 9}}));
}

TEST_P(GenerateTest, RowsOfABatchEqualRowsAlone) {
  for (const auto& [name, config] : various_decoders()) {
    Decoder decoder = make_decoder(config, device(), DType::f32);
    GenerateSettings greedy;
    greedy.new_tokens = 6;
    greedy.sampler.temperature = 0;
    Generator random(1);
    const Prompts together = generate(decoder, kPrompts, greedy, random, device());
    for (std::size_t row = 0; row < kPrompts.size(); ++row)
      EXPECT_EQ(generate(decoder, {kPrompts[row]}, greedy, random, device())[0], together[row]) << name;
  }
}

TEST_P(GenerateTest, GreedyIsTheArgmaxOfTheFullPass) {
  Decoder decoder = model();
  GenerateSettings greedy;
  greedy.new_tokens = 6;
  greedy.sampler.temperature = 0;
  Generator random(1);
  const Prompts answers = generate(decoder, kPrompts, greedy, random, device());
  for (std::size_t row = 0; row < kPrompts.size(); ++row) {
    TokenRow text = kPrompts[row];
    for (const std::int64_t id : answers[row]) {
      EXPECT_EQ(argmax(logits_alone(decoder, text, device())[-1]).item(), id);
      text.push_back(id);
    }
  }
}

TEST_P(GenerateTest, TheSeedFixesWhatIsDrawnAndCompanionsDoNotChangeIt) {
  Decoder decoder = model();
  GenerateSettings settings;
  settings.new_tokens = 6;
  const auto draw = [&](const Prompts& prompts, std::uint64_t seed) {
    Generator random(seed);
    return generate(decoder, prompts, settings, random, device());
  };
  EXPECT_EQ(draw(kPrompts, 1), draw(kPrompts, 1));
  EXPECT_NE(draw(kPrompts, 1), draw(kPrompts, 2));
  EXPECT_EQ(draw(kPrompts, 1)[0], draw({kPrompts[0], kPrompts[0]}, 1)[0]);
  const Prompts twice = draw({kPrompts[0], kPrompts[0]}, 1);
  EXPECT_NE(twice[0], twice[1]) << "every row has a stream of its own";
  Generator random(1);
  const Prompts first = generate(decoder, kPrompts, settings, random, device());
  EXPECT_NE(generate(decoder, kPrompts, settings, random, device()), first) << "the stream goes on";
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
  HeadWatch watch;
  const ObserverScope scope(&watch);
  GenerateSettings settings;
  settings.new_tokens = 4;
  Generator random(1);
  generate(decoder, kPrompts, settings, random, device());
  EXPECT_EQ(watch.positions, (std::vector<std::int64_t>{3, 3, 3, 3}));
  // Training scores all positions in one pass.
  watch.positions.clear();
  decoder.forward(padded(kPrompts, PaddingSide::right, device()));
  EXPECT_EQ(watch.positions, std::vector<std::int64_t>{15});
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
  Generator random(1);
  EXPECT_TRUE(contains(error_of([&] { generate(decoder, kPrompts, settings, random, device()); }),
                       {"row 2", "token 2", "not a number"}));
}

TEST_P(GenerateTest, ImpossibleRequestsAreErrors) {
  Decoder decoder = model();
  Generator random(1);
  GenerateSettings settings;
  settings.new_tokens = 8;
  EXPECT_TRUE(contains(error_of([&] { generate(decoder, kPrompts, settings, random, device()); }),
                       {"prompt of 5", "8 new", "context of 11"}));
  settings.new_tokens = 7;  // the last one drawn is not read again
  EXPECT_EQ(generate(decoder, kPrompts, settings, random, device())[2].size(), 7);
  EXPECT_TRUE(contains(error_of([&] {
                         generate(decoder, {{1}, {}}, settings, random, device());
                       }),
                       {"prompt"}));
  EXPECT_TRUE(generate(decoder, {}, settings, random, device()).empty());
  settings.new_tokens = 0;
  EXPECT_EQ(generate(decoder, {{1}}, settings, random, device()), Prompts(1));
}

TEST_P(GenerateTest, NothingIsRecorded) {
  Decoder decoder = model();
  GenerateSettings settings;
  settings.new_tokens = 4;
  Generator random(1);
  generate(decoder, kPrompts, settings, random, device());
  const std::size_t live = device()->memory_stats().live;
  generate(decoder, kPrompts, settings, random, device());
  EXPECT_EQ(device()->memory_stats().live, live);
}

INSTANTIATE_TEST_SUITE_P(All, GenerateTest, testing::ValuesIn(all_devices()), device_name);

}  // namespace
}  // namespace needle
