// Decoders as wholes: parameters and memory, ties, first losses, learning, and the programs that check them.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "needle/optim/optimizer.h"
#include "tests/agree.h"
#include "tests/decoders.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

class ModelsTest : public OnDevice {};

TEST_P(ModelsTest, ParameterCountsFollowTheFormula) {
  Generator random(1);
  for (const auto& [name, config] : various_decoders()) {
    Decoder model(config, random, device());
    EXPECT_EQ(model.parameter_count(), config.parameter_count()) << name;
  }
  // GPT-2's smallest: 124,439,808 parameters.
  DecoderConfig gpt2;
  gpt2.vocabulary = 50257;
  gpt2.context = 1024;
  gpt2.width = 768;
  gpt2.layers = gpt2.heads = 12;
  EXPECT_EQ(gpt2.parameter_count(), 124439808);
}

TEST_P(ModelsTest, EveryParameterReceivesAGradient) {
  for (const auto& [name, config] : various_decoders()) {
    Decoder model = make_decoder(config, device());
    const SequenceInput input = padded({{1, 4, 12, 7, 3, 2, 8}, {9, 5}}, PaddingSide::right, device());
    const NDArray logits_seed = normal({2, 7, 13}, 4);
    model.forward(input).backward(logits_seed);
    for (const Parameter& parameter : model.parameters()) {
      ASSERT_TRUE(parameter.tensor.grad().defined()) << name << ", " << parameter.name;
      EXPECT_GT(largest_magnitude(parameter.tensor.grad()), 1e-12) << name << ", " << parameter.name;
    }
  }
}

TEST_P(ModelsTest, ConfigsSurviveJson) {
  for (const auto& [name, config] : various_decoders()) {
    const nlohmann::json json = config;
    EXPECT_EQ(nlohmann::json(json.get<ModelConfig>()), nlohmann::json(config.resolved())) << name;
  }
  nlohmann::json json = various_decoders()[0].config;
  json["layrs"] = 3;
  EXPECT_TRUE(contains(error_of([&] { json.get<ModelConfig>(); }), {"layrs"}));
  json.erase("layrs");
  json.erase("width");
  EXPECT_TRUE(contains(error_of([&] { json.get<ModelConfig>(); }), {"width", "missing"}));
  json["width"] = "wide";
  EXPECT_TRUE(contains(error_of([&] { json.get<ModelConfig>(); }), {"width", "wide"}));
}

TEST_P(ModelsTest, ImpossibleConfigsAreErrorsThatSayWhy) {
  struct Case {
    std::vector<std::string> message;
    void (*change)(DecoderConfig&);
  };
  const std::vector<Case> cases{
      {{"vocabulary", "0"}, [](DecoderConfig& c) { c.vocabulary = 0; }},
      {{"layers", "-1"}, [](DecoderConfig& c) { c.layers = -1; }},
      {{"width 12", "5 heads"}, [](DecoderConfig& c) { c.heads = 5; }},
      {{"3 heads", "2 key/value heads"}, [](DecoderConfig& c) { c.key_value_heads = 2; }},
      {{"rotary", "even head width", "3"},
       [](DecoderConfig& c) { c.heads = 4, c.positions = Positions::rotary; }},
      {{"sinusoidal", "even width", "9"},
       [](DecoderConfig& c) { c.width = 9, c.positions = Positions::sinusoidal; }},
      {{"window", "-1"}, [](DecoderConfig& c) { c.window = -1; }},
      {{"10000000000", "too large"}, [](DecoderConfig& c) { c.width = 10'000'000'000; }},
      {{"GB"}, [](DecoderConfig& c) { c.layers = 2'000'000'000; }},
      {{"dropout", "1.5"}, [](DecoderConfig& c) { c.dropout = 1.5; }}};
  Generator random(1);
  for (const Case& impossible : cases) {
    DecoderConfig config = various_decoders()[0].config;
    impossible.change(config);
    EXPECT_TRUE(contains(error_of([&] { Decoder(config, random, device()); }), impossible.message));
  }
}

TEST_P(ModelsTest, ACloneIsIndependent) {
  Decoder model = make_decoder(various_decoders()[0].config, device());
  Decoder clone = model.clone();
  const TokenRow row{1, 2, 3};
  const NDArray before = logits_alone(model, row, device());
  EXPECT_TRUE(same(logits_alone(clone, row, device()), before));
  for (Parameter& parameter : clone.parameters())
    parameter.tensor.set_array(NDArray::zeros(parameter.tensor.shape(), exact(), device()));
  EXPECT_TRUE(same(logits_alone(model, row, device()), before));
}

TEST_P(ModelsTest, DropoutActsInTrainingAlone) {
  DecoderConfig config = various_decoders()[0].config;
  config.dropout = 0.5;
  Decoder model = make_decoder(config, device());
  const SequenceInput input{ids({1, 2, 3}, {1, 3}), {}, {}};
  const NDArray plain = model.forward(input).array();
  EXPECT_TRUE(same(model.forward(input).array(), plain));
  Generator random(1), again(1);
  const NDArray dropped = model.forward(input, {true, &random}).array();
  EXPECT_FALSE(agrees(dropped, plain));
  EXPECT_TRUE(same(model.forward(input, {true, &again}).array(), dropped));
  EXPECT_TRUE(contains(error_of([&] { model.forward(input, {true}); }), {"dropout", "generator"}));
}

TEST_P(ModelsTest, S23_SinusoidalPositionsAreFixedAndWantAnEvenWidth) {
  EXPECT_TRUE(contains(error_of([&] { sinusoidal_table(5, 3); }), {"even", "3"}));
  EXPECT_TRUE(agrees(sinusoidal_table(2, 4, exact(), device())[1],
                     array({std::sin(1), std::cos(1), std::sin(0.01), std::cos(0.01)})));
  DecoderConfig config = various_decoders()[0].config;
  const auto has_table = [&] {
    Generator random(1);
    bool found = false;
    Decoder model(config, random, device());
    for (const Parameter& p : model.state()) found |= p.name.starts_with("position");
    return found;
  };
  EXPECT_TRUE(has_table());
  config.positions = Positions::sinusoidal;
  EXPECT_FALSE(has_table());
}

TEST_P(ModelsTest, S24_ATiedHeadIsTheTokenTableTransposed) {
  DecoderConfig config = various_decoders()[0].config;
  Decoder tied = make_decoder(config, device());
  config.tied = false;
  Decoder own = make_decoder(config, device());
  const auto named = [](Decoder& model, const std::string& name) {
    for (const Parameter& parameter : model.parameters()) {
      if (parameter.name == name) return parameter.tensor;
    }
    return Tensor();
  };
  const std::vector<Parameter> shared = tied.parameters();
  EXPECT_EQ(own.parameters().size(), shared.size() + 2);
  for (const Parameter& parameter : shared) named(own, parameter.name).set_array(parameter.tensor.array());
  const Tensor table = named(tied, "token_embedding.weight");
  named(own, "head.weight").set_array(table.array().transpose().copy());
  named(own, "head.bias").set_array(NDArray::zeros({13}, exact(), device()));

  const SequenceInput input{ids({5, 1, 5}, {1, 3}), {}, {}};
  const NDArray seed = normal({1, 3, 13}, 3);
  const Tensor logits = tied.forward(input), same_logits = own.forward(input);
  EXPECT_TRUE(agrees(logits.array(), same_logits.array()));
  logits.backward(seed);
  same_logits.backward(seed);
  // The one table is trained by both of its uses.
  const NDArray as_table = named(own, "token_embedding.weight").grad();
  const NDArray as_head = named(own, "head.weight").grad().transpose();
  EXPECT_GT(largest_magnitude(as_table), 0);
  EXPECT_TRUE(agrees(table.grad(), binary(Add{}, as_table, as_head)));
}

TEST_P(ModelsTest, BR023_TheFirstLossIsThatOfAGuess) {
  for (const std::int64_t vocabulary : {65, 85, 50257}) {
    for (const bool tied : {true, false}) {
      DecoderConfig config;
      config.vocabulary = vocabulary;
      config.context = 16;
      config.width = 32;
      config.layers = 2;
      config.tied = tied;
      Generator random(1);
      Decoder model(config, random, device());
      std::vector<std::int64_t> tokens, labels;
      for (int i = 0; i < 32; ++i) {
        tokens.push_back(random.below(vocabulary));
        labels.push_back(random.below(vocabulary));
      }
      const NoGrad off;
      const Tensor logits = model.forward({ids(tokens, {2, 16}), {}, {}});
      EXPECT_NEAR(cross_entropy(logits, ids(labels, {2, 16})).item(), std::log(vocabulary), 0.15)
          << vocabulary << (tied ? ", tied" : "");
    }
  }
}

TEST_P(ModelsTest, InitialisationsHaveTheirDeviations) {
  DecoderConfig config;
  config.vocabulary = 200;
  config.width = 64;
  config.layers = 8;
  for (const Initialisation scheme : {Initialisation::normal, Initialisation::uniform}) {
    config.initialisation = scheme;
    Generator random(1);
    Decoder model(config, random, device());
    for (const Parameter& parameter : model.parameters()) {
      if (parameter.tensor.rank() < 2) continue;
      const double fan_in = static_cast<double>(parameter.tensor.size(0));
      const bool table = parameter.name.ends_with("embedding.weight");
      const bool residual = parameter.name.ends_with("out.weight") || parameter.name.ends_with("down.weight");
      const double wanted = scheme == Initialisation::normal ? 0.02 / (residual ? 4 : 1)
                            : table                          ? 1
                                                             : 1 / std::sqrt(3 * fan_in);
      const double deviation = std::sqrt(variance(parameter.tensor).item());
      EXPECT_NEAR(deviation / wanted, 1, 0.05) << parameter.name;
    }
  }
}

TEST_P(ModelsTest, AfterAStepOnlyParametersGradientsAndMomentsAreLive) {
  for (const auto& [name, config] : various_decoders()) {
    const std::size_t before = device()->memory_stats().live;
    Generator random(1);
    Decoder model(config, random, device());
    const std::size_t built = device()->memory_stats().live;
    // Parameters, and the table of sinusoidal positions.
    const std::size_t table = config.positions == Positions::sinusoidal
                                  ? static_cast<std::size_t>(config.context * config.width)
                                  : 0;
    const std::size_t parameters = static_cast<std::size_t>(model.parameter_count()) * sizeof(float);
    EXPECT_EQ(built - before, parameters + table * sizeof(float)) << name;
    Adam optimizer(groups_by_rank(model.parameters(), 0.1), AdamDecay::decoupled);
    const auto step = [&] {
      const NDArray tokens = ids({1, 4, 12, 7, 3, 3}, {2, 3});
      cross_entropy(model.forward({tokens, {}, {}}), tokens).backward();
      optimizer.step(1e-3);
    };
    step();
    EXPECT_EQ(device()->memory_stats().live, built + 3 * parameters + sizeof(StepState)) << name;
    const std::uint64_t allocations = device()->memory_stats().system_allocations;
    for (int i = 0; i < 3; ++i) {
      optimizer.clear_gradients();
      step();
    }
    EXPECT_EQ(device()->memory_stats().system_allocations, allocations) << name;
    optimizer.clear_gradients();
    EXPECT_EQ(device()->memory_stats().live, built + 2 * parameters + sizeof(StepState)) << name;
  }
}

TEST_P(ModelsTest, ADecoderOfEveryKindLearnsARow) {
  const NDArray inputs = ids({1, 4, 12, 7, 3, 3, 9}, {1, 7}), labels = ids({4, 12, 7, 3, 3, 9, 2}, {1, 7});
  for (const auto& [name, config] : various_decoders()) {
    Generator random(1);
    Decoder model(config, random, device());
    Adam optimizer(groups_by_rank(model.parameters(), 0), AdamDecay::decoupled);
    const auto loss = [&] { return cross_entropy(model.forward({inputs, {}, {}}), labels); };
    const double before = loss().item();
    const bool quick = device() == cpu();
    for (int step = 0; step < (quick ? 40 : 8); ++step) {
      loss().backward();
      optimizer.step(2e-2);
      optimizer.clear_gradients();
    }
    EXPECT_LT(loss().item(), (quick ? 0.3 : 0.9) * before) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ModelsTest, testing::ValuesIn(all_devices()), device_name);

// --- the program ---------------------------------------------------------------------------------------

/// What a command prints, and its exit code.
std::pair<std::string, int> run_program(const std::string& arguments) {
  std::string output;
  FILE* pipe = popen((std::string(NEEDLE_PROGRAM) + " " + arguments).c_str(), "r");
  if (!pipe) return {"", -1};
  char part[512];
  while (const std::size_t count = fread(part, 1, sizeof part, pipe)) output.append(part, count);
  const int status = pclose(pipe);
  return {output, WIFEXITED(status) ? WEXITSTATUS(status) : -1};
}

TEST(DecoderProgram, S41_PrintsAndAssertsItsFourChecks) {
  const auto [text, code] = run_program("decoder");
  EXPECT_EQ(code, 0) << text;
  EXPECT_TRUE(contains(text, {"2 layers", "6 targets", "future tokens", "cached token-by-token",
                              "right-padded", "finite gradient"}));
  EXPECT_EQ(text.find("FAIL"), std::string::npos) << text;
}

TEST(DecoderProgram, S41_TheLossIsNearLn16WhateverTheSeed) {
  for (const int seed : {1, 2, 3}) {
    const auto [text, code] = run_program("decoder --json --seed " + std::to_string(seed));
    EXPECT_EQ(code, 0) << text;
    const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
    ASSERT_TRUE(json.is_object()) << text;
    EXPECT_NEAR(json.at("loss").get<double>(), std::log(16), 0.15);
    EXPECT_EQ(json.at("targets"), 6);
    EXPECT_EQ(json.at("checks").size(), 4);
    for (const nlohmann::json& check : json.at("checks"))
      EXPECT_TRUE(check.at("passed").get<bool>()) << check;
  }
}

TEST(GradcheckProgram, ChecksTheOpsThatAreAskedFor) {
  const auto [text, code] = run_program("gradcheck --op gelu");
  EXPECT_EQ(code, 0) << text;
  EXPECT_TRUE(contains(text, {"gelu", "pass", "0 failed"}));
}

}  // namespace
}  // namespace needle
