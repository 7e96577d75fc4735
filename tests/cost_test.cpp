// What models cost: formulas against what a real pass counts and allocates.
#include "needle/inspect/cost.h"

#include <gtest/gtest.h>

#include "needle/models/model.h"
#include "needle/models/names_of_choices.h"
#include "needle/ops/ops.h"
#include "tests/decoders.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

class CostTest : public OnDevice {};

/// A small model of each kind, and decoders of every sort.
std::vector<std::pair<std::string, ModelConfig>> various_models() {
  std::vector<std::pair<std::string, ModelConfig>> all;
  for (const auto& [name, config] : various_decoders())
    all.emplace_back(name, ModelConfig(config).resolved());
  for (const auto& [name, kind] : names_of(ModelKind{})) {
    ModelConfig config = DecoderConfig::of_size(13, 11, 8, 3, 2);
    config.kind = kind;
    config.kernel = 2;
    config.dilations = {1, 3};
    config.features = 5;
    all.emplace_back(name, config.resolved());
  }
  return all;
}

TEST_P(CostTest, S31_EveryPartCostsWhatItsFormulaSays) {
  for (const auto& [name, config] : various_models()) {
    const PassSizes sizes{2, 7, 5};
    Generator random(1);
    const std::unique_ptr<SequenceModel> model = make_model(config, random, device());
    const CountedPass pass = count_pass(*model, sizes, false, device());
    for (const PartCost& part : forward_cost(config, sizes))
      EXPECT_EQ(pass.forward(part.part), part.masked) << name << ", " << part.part;
    EXPECT_EQ(pass.counter.forward_products(), operations_of(forward_cost(config, sizes))) << name;
    EXPECT_EQ(pass.counter.sum(Phase::backward).calls, 0u);
    EXPECT_EQ(pass.counter.sum(Phase::forward).bytes_kept, 0);
  }
}

TEST_P(CostTest, S31_ABlockByFormula) {
  // Two blocks' products and the head's, in all their parts.
  ModelConfig config = DecoderConfig::of_size(13, 11, 8, 2, 2);
  const std::vector<PartCost> parts = forward_cost(config, {3, 48, 0});
  const double b = 3, t = 48, d = 8;
  const auto block = [&](std::size_t part) { return parts[part].unmasked / 2; };
  ASSERT_EQ(parts.size(), 4u);
  EXPECT_EQ(block(0), 8 * b * t * d * d);
  EXPECT_EQ(block(1), 4 * b * t * t * d);
  EXPECT_EQ(parts[1].masked / 2, 2 * b * t * (t + 1) * d);
  EXPECT_EQ(block(2), 16 * b * t * d * d);
  EXPECT_EQ(block(0) + block(2), block(1));  // T = 6 D
  EXPECT_EQ(parts[3].unmasked, 2 * b * t * d * 13);
}

TEST_P(CostTest, S32_EntriesOfWeights) {
  constexpr double kMiB = 1 << 20;
  EXPECT_EQ(weights_entries(2, 8, 1024, 1024), 16777216);
  EXPECT_EQ(2 * weights_entries(2, 8, 1024, 1024), 32 * kMiB);
  EXPECT_EQ(2 * weights_entries(2, 8, 2048, 2048), 128 * kMiB);
  EXPECT_EQ(2 * weights_entries(1, 1, 4096, 4096), 32 * kMiB);
}

TEST_P(CostTest, S32_FusedAttentionsMemoryGrowsLinearly) {
  const auto extra = [&](std::int64_t time, bool backward) {
    const Tensor x(normal({1, 2, time, 4}, 1, DType::f32), backward);
    const auto run = [&] {
      const Tensor y = attention(x, x, x, {.causal = true});
      if (backward) y.backward(y.array());
      device()->synchronize();
    };
    run();  // what is allocated once and for all
    x.body()->grad = {};
    device()->trim_memory();
    const std::size_t before = device()->memory_stats().live;
    run();
    return static_cast<double>(device()->memory_stats().peak - before);
  };
  for (const bool backward : {false, true}) {
    const double once = extra(128, backward), twice = extra(256, backward), fourfold = extra(512, backward);
    EXPECT_GT(once, 0);
    EXPECT_LE(twice, 2 * once) << backward;
    EXPECT_LE(fourfold, 4 * once) << backward;
    EXPECT_LT(fourfold, 4 * weights_entries(1, 2, 512, 512) / 4) << backward;
  }
}

TEST_P(CostTest, S33_AnEncoderDecodersPairs) {
  ModelConfig config = DecoderConfig::of_size(13, 11, 8, 3, 2);
  config.kind = ModelKind::encoder_decoder;
  const double batch = 2, source = 9, target = 5, a_pair = batch * 3 * 4 * 8;
  std::map<std::string, double> parts;
  for (const PartCost& part : forward_cost(config, {2, 5, 9})) parts[part.part] = part.unmasked / a_pair;
  EXPECT_EQ(parts.at("encoder scores and mixing"), source * source);
  EXPECT_EQ(parts.at("scores and mixing"), target * target);
  EXPECT_EQ(parts.at("cross scores and mixing"), source * target);
}

TEST_P(CostTest, S36_BytesOfACache) {
  ModelConfig config = DecoderConfig::of_size(13, 2048, 1024, 24, 16);
  constexpr double kMiB = 1 << 20;
  EXPECT_EQ(state_bytes(config, {1, 2048, 0}, DType::bf16), 201326592);
  EXPECT_EQ(state_bytes(config, {1, 2048, 0}, DType::bf16), 192 * kMiB);
  EXPECT_EQ(state_bytes(config, {4, 2048, 0}, DType::bf16), 768 * kMiB);
  config.key_value_heads = 4;
  EXPECT_EQ(state_bytes(config, {1, 2048, 0}, DType::bf16), 48 * kMiB);
}

TEST_P(CostTest, S36_S37_DecodingRemembersAndReadsWhatTheFormulasSay) {
  constexpr std::int64_t kPrompt = 4, kSteps = 5;
  EXPECT_EQ(query_key_pairs(kSteps, kPrompt, true, 0), kSteps * kPrompt + kSteps * (kSteps + 1) / 2);
  for (const auto& [name, config] : various_models()) {
    if (config.has_attention() && !config.causal) continue;
    const PassSizes prompt{2, kPrompt, 3}, all{2, kPrompt + kSteps, 3};
    Generator random(1);
    const std::unique_ptr<SequenceModel> model = make_model(config, random, device());
    const CountedDecoding decoding = count_decoding(*model, prompt, kSteps, device());
    EXPECT_EQ(decoding.bytes, state_bytes(config, all)) << name;
    const double pairs = config.has_attention() ? query_key_pairs(kSteps, kPrompt, true, config.window) : 0;
    EXPECT_EQ(decoding.pairs, pairs) << name;
  }
}

TEST_P(CostTest, PairsAreThoseThatTheMaskAllows) {
  for (const std::int64_t window : {0, 1, 3, 20}) {
    for (const std::int64_t past : {0, 2, 6}) {
      AttentionSettings settings;
      settings.causal = true;
      settings.offset = past;
      settings.window = window;
      EXPECT_EQ(query_key_pairs(5, past, true, window), attention_pairs(settings, {1, 1, 5, past + 5}))
          << window << ' ' << past;
    }
  }
  EXPECT_EQ(query_key_pairs(5, 2, false, 0), 5 * 7);
}

/// How far apart the first and the last of so many positions are.
struct PathCase {
  ModelKind kind;
  std::int64_t layers, kernel;
  std::vector<std::int64_t> dilations;
  std::int64_t window, time;
  std::optional<std::int64_t> steps;
};

TEST_P(CostTest, S30_StepsFromTheFirstPositionToTheLast) {
  constexpr ModelKind attention = ModelKind::decoder, convolution = ModelKind::convolution;
  const std::vector<PathCase> cases{
      {ModelKind::rnn, 2, 1, {1}, 0, 8, 7},    {ModelKind::lstm, 1, 1, {1}, 0, 1, 0},
      {attention, 1, 1, {1}, 0, 8, 1},         {attention, 2, 1, {1}, 4, 7, 2},
      {attention, 2, 1, {1}, 4, 8, {}},        {attention, 2, 1, {1}, 1, 2, {}},
      {convolution, 3, 2, {1}, 0, 8, {}},      {convolution, 3, 2, {1}, 0, 4, 3},
      {convolution, 3, 3, {1}, 0, 4, 2},       {convolution, 3, 2, {1, 2, 4}, 0, 8, 3},
      {convolution, 3, 2, {1, 2, 4}, 0, 5, 1}, {convolution, 2, 2, {4}, 0, 8, {}},
      {convolution, 2, 2, {4}, 0, 9, 2}};
  for (const PathCase& row : cases) {
    ModelConfig config = DecoderConfig::of_size(13, 11, 8, row.layers, 2);
    config.kind = row.kind;
    config.kernel = row.kernel;
    config.dilations = row.dilations;
    config.window = row.window;
    EXPECT_EQ(path_length(config, row.time), row.steps)
        << name_of_choice(row.kind) << ' ' << row.layers << ' ' << row.kernel << ' ' << row.time;
  }
}

TEST_P(CostTest, FactsOfAModel) {
  for (const auto& [name, config] : various_models()) {
    const ModelFacts facts = facts_of(config, 9, device());
    EXPECT_EQ(facts.parameters, config.parameter_count()) << name;
    EXPECT_EQ(facts.operations_per_token, operations_of(forward_cost(config, {1, 9, 9})) / 9) << name;
    EXPECT_EQ(facts.path, path_length(config, 9)) << name;
    EXPECT_EQ(facts.receptive_field, config.receptive_field()) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, CostTest, testing::ValuesIn(all_devices()), device_name);

}  // namespace
}  // namespace needle
