// The weights of attention on request: what they are, and that nobody pays who does not ask.
#include "needle/inspect/attention_weights.h"

#include <gtest/gtest.h>

#include "needle/counters.h"
#include "needle/models/model.h"
#include "needle/ops/attention_watch.h"
#include "tests/agree.h"
#include "tests/decoders.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

class AttentionWeightsTest : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(All, AttentionWeightsTest, testing::ValuesIn(all_devices()), device_name);

/// Key or value heads repeated for the heads that each serves.
NDArray served(const NDArray& x, std::int64_t heads) {
  const std::int64_t times = heads / x.size(1);
  return x.unsqueeze(2)
      .broadcast_to({x.size(0), x.size(1), times, x.size(2), x.size(3)})
      .reshape({x.size(0), heads, x.size(2), x.size(3)});
}

TEST_P(AttentionWeightsTest, TheToldWeightsTimesTheValuesAreWhatTheFusedOpGives) {
  struct Case {
    const char* name;
    std::int64_t heads, key_heads;
    AttentionOptions options;
  };
  std::vector<Case> cases{{"plain", 2, 2, {}},  {"causal", 2, 2, {}},   {"grouped heads", 4, 2, {}},
                          {"window", 4, 1, {}}, {"soft cap", 2, 2, {}}, {"key mask", 2, 1, {}}};
  for (std::size_t i = 1; i < cases.size(); ++i) cases[i].options.causal = true;
  cases[3].options.window = 3;
  cases[4].options.soft_cap = 0.7;
  cases[5].options.key_mask = mask({1, 1, 1, 0, 1, 1, 0, 0, 1, 1}, {2, 5});
  for (const auto& [name, heads, key_heads, options] : cases) {
    SCOPED_TRACE(name);
    const NDArray query = normal({2, heads, 5, 4}, 1), key = normal({2, key_heads, 5, 4}, 2),
                  value = normal({2, key_heads, 5, 3}, 3);
    const Tensor bias(normal({1, 1, 5, 5}, 4));
    NDArray told;
    const AttentionWatch watch([&](const std::string&, const auto& weights) { told = weights(); });
    const Tensor output = attention(Tensor(query), Tensor(key), Tensor(value), options, bias);
    ASSERT_TRUE(told.defined());
    EXPECT_TRUE(agrees(matmul(told, served(value, heads)), output.array()));
    const NDArray allowed = allowed_pairs(options, 5, 5, device()).broadcast_to(told.shape());
    const std::vector<bool> may = allowed.to_vector<bool>();
    const std::vector<double> weights = told.to_vector<double>();
    for (std::size_t row = 0; row < weights.size() / 5; ++row) {
      double sum = 0;
      bool any = false;
      for (std::size_t k = 5 * row; k < 5 * row + 5; ++k) {
        sum += weights[k];
        any |= may[k];
        EXPECT_EQ(weights[k] != 0, may[k]) << row << ", " << k;
      }
      EXPECT_NEAR(sum, any ? 1 : 0, 1e-6);
    }
  }
}

TEST_P(AttentionWeightsTest, EveryLayerOfADecoderShowsItsHeads) {
  for (const auto& [name, config] : various_decoders()) {
    SCOPED_TRACE(name);
    Decoder model = make_decoder(config, device());
    const SequenceInput input = padded({{1, 4, 12, 7, 3, 2}, {9, 5, 6}}, PaddingSide::right, device());
    const std::vector<LayerWeights> layers = attention_weights_of(model, input);
    ASSERT_EQ(std::ssize(layers), config.layers);
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      const NDArray& weights = layers[layer].weights;
      EXPECT_EQ(layers[layer].path, "blocks." + std::to_string(layer) + ".attention");
      ASSERT_EQ(weights.shape(), (Shape{2, config.heads, 6, 6}));
      const NDArray sums = reduce(Sum{}, weights[0], {-1});
      EXPECT_TRUE(agrees(sums, NDArray::ones(sums.shape(), sums.dtype(), device())));
      for (std::int64_t row = 0; row < 2; ++row) {
        const std::vector<double> each = weights[row][0].to_vector<double>();
        for (std::int64_t i = 0; i < (row == 0 ? 6 : 3); ++i) {
          for (std::int64_t j = 0; j < 6; ++j) {
            const bool may = j <= i && (config.window == 0 || i - j < config.window);
            EXPECT_EQ(each[static_cast<std::size_t>(6 * i + j)] != 0, may) << row << ", " << i << ", " << j;
          }
        }
      }
    }
    const std::vector<LayerWeights> one = attention_weights_of(model, input, config.layers - 1);
    ASSERT_EQ(one.size(), layers.size());
    EXPECT_TRUE(same(one.back().weights, layers.back().weights));
    EXPECT_EQ(one.front().weights.defined(), config.layers == 1);
  }
}

TEST_P(AttentionWeightsTest, AnEncoderDecoderShowsItsThreeKinds) {
  ModelConfig config = DecoderConfig::of_size(13, 8, 12, 1, 3);
  config.kind = ModelKind::encoder_decoder;
  Generator random(1);
  const std::unique_ptr<SequenceModel> model = make_model(config, random, device());
  SequenceInput input{ids({1, 2, 3}, {1, 3}), {}, {}};
  input.source_ids = ids({4, 5, 6, 7, 8}, {1, 5});
  std::vector<std::pair<std::string, Shape>> found;
  for (const LayerWeights& layer : attention_weights_of(*model, input))
    found.emplace_back(layer.path, layer.weights.shape());
  EXPECT_EQ(found, (std::vector<std::pair<std::string, Shape>>{{"encoder.blocks.0.attention", {1, 3, 5, 5}},
                                                               {"decoder.blocks.0.attention", {1, 3, 3, 3}},
                                                               {"decoder.blocks.0.cross", {1, 3, 3, 5}}}));
}

TEST_P(AttentionWeightsTest, AskingChangesNothingAndIsNotCounted) {
  Decoder model = make_decoder(various_decoders()[0].config, device());
  const SequenceInput input{ids({1, 2, 3}, {1, 3}), {}, {}};
  const auto counted = [&] {
    OperationCounter counter;
    const ObserverScope scope(&counter);
    const NDArray logits = model.forward(input).array();
    return std::pair(logits, counter.sum(Phase::forward).calls);
  };
  const auto [before, calls] = counted();
  int told = 0;
  const AttentionWatch watch([&](const std::string&, const auto& weights) { told += weights().rank() == 4; });
  const auto [after, watched_calls] = counted();
  EXPECT_EQ(told, 2);
  EXPECT_TRUE(same(after, before));
  EXPECT_EQ(watched_calls, calls);
}

TEST_P(AttentionWeightsTest, WhatIsNotThereIsAnErrorThatSaysWhatIs) {
  Decoder model = make_decoder(various_decoders()[0].config, device());
  const SequenceInput input{ids({1, 2, 3}, {1, 3}), {}, {}};
  for (const std::int64_t layer : {-1, 2})
    EXPECT_TRUE(contains(error_of([&] { attention_weights_of(model, input, layer); }),
                         {"no layer " + std::to_string(layer), "0 to 1"}));
  const LayerWeights layer = attention_weights_of(model, input, 1).back();
  const std::vector<std::string> tokens{"a", "b", "c"};
  EXPECT_TRUE(
      contains(error_of([&] { attention_picture(layer, 0, 3, tokens, tokens); }), {"no head 3", "0 to 2"}));
  EXPECT_TRUE(contains(error_of([&] { attention_picture(layer, 1, 0, tokens, tokens); }), {"no row 1"}));
  const HeatMap picture = attention_picture(layer, 0, 2, tokens, tokens);
  EXPECT_EQ(picture.title, "blocks.1.attention, head 2");
  EXPECT_EQ(picture.values[0], 1);
  EXPECT_TRUE(contains(error_of([&] { draw_heat_map(attention_picture(layer, 0, 0, tokens, {"a"})); }),
                       {"9 values"}));
}

}  // namespace
}  // namespace needle
