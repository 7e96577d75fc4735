// The encoder-decoder: who reads whom, padding on both sides, caches, and what it costs.
#include "needle/models/encoder_decoder.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "needle/counters.h"
#include "needle/models/model.h"
#include "needle/ops/ops.h"
#include "needle/precision.h"
#include "tests/agree.h"
#include "tests/decoders.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

NamedDecoder changed(std::string name, void (*change)(DecoderConfig&)) {
  return changed_decoder(std::move(name), change);
}

std::vector<NamedDecoder> various_encoder_decoders() {
  using Config = DecoderConfig;
  return {changed("pre-norm", [](Config&) {}),
          changed("post-norm", [](Config& c) { c.order = NormOrder::post, c.tied = false; }),
          changed("sinusoidal window", [](Config& c) { c.positions = Positions::sinusoidal, c.window = 3; }),
          changed("rotary gated rms", [](Config& c) {
            c.positions = Positions::rotary, c.activation = Activation::gated, c.norm = NormKind::rms;
            c.bias = false, c.heads = 6, c.key_value_heads = 2, c.soft_cap = 2;
          })};
}

class EncoderDecoderTest : public testing::TestWithParam<std::tuple<Device, NamedDecoder>> {
 protected:
  Device device() const { return std::get<0>(GetParam()); }
  ModelConfig config() const {
    ModelConfig config = std::get<1>(GetParam()).config;
    config.kind = ModelKind::encoder_decoder;
    return config;
  }
  EncoderDecoder model(DType dtype) const {
    Generator random(3);
    EncoderDecoder model(config(), random, device(), dtype);
    enlarge_weights(model, random);
    return model;
  }
  EncoderDecoder model() const { return model(exact_dtype(device())); }
  /// Pairs of a source and a target as one batch.
  SequenceInput input(const std::vector<TokenRow>& sources, const std::vector<TokenRow>& targets,
                      PaddingSide side = PaddingSide::right, std::int64_t extra = 0) const {
    const auto wide = [&](const std::vector<TokenRow>& rows) {
      std::size_t longest = 0;
      for (const TokenRow& row : rows) longest = std::max(longest, row.size());
      return padded(rows, side, device(), static_cast<std::int64_t>(longest) + extra, 11);
    };
    const SequenceInput source = wide(sources);
    SequenceInput both = wide(targets);
    both.source_ids = source.ids;
    both.source_real = source.real;
    return both;
  }
};

const std::vector<TokenRow> kSources{{5, 6, 7, 3}, {9}, {4, 12, 8, 3, 10, 6}};
const std::vector<TokenRow> kTargets{{1, 4, 12}, {1, 9, 3, 8, 8}, {1}};

TEST_P(EncoderDecoderTest, S06_ATargetReadsItselfUpToHereAndTheWholeSource) {
  EncoderDecoder translator = model(DType::f32);
  const NoGrad off;
  const TokenRow source = kSources[2], target{1, 4, 12, 7};
  const NDArray before = translator.forward(input({source}, {target})).array()[0];
  for (std::int64_t i = 1; i < 4; ++i) {
    TokenRow other = target;
    for (auto t = static_cast<std::size_t>(i); t < other.size(); ++t) other[t] = (other[t] + 4) % 13;
    const NDArray after = translator.forward(input({source}, {other})).array()[0];
    EXPECT_TRUE(same(after.slice(0, 0, i), before.slice(0, 0, i)));
    EXPECT_FALSE(same(after[i], before[i]));
  }
  for (std::size_t s = 0; s < source.size(); ++s) {
    TokenRow other = source;
    other[s] = (other[s] + 4) % 13;
    const NDArray after = translator.forward(input({other}, {target})).array()[0];
    for (std::int64_t i = 0; i < 4; ++i) EXPECT_FALSE(same(after[i], before[i])) << s << ", " << i;
  }
}

TEST_P(EncoderDecoderTest, S06_GradientsOfLaterTargetsAreExactlyZero) {
  EncoderDecoder translator = model();
  const SequenceInput both = input({kSources[0]}, {kTargets[1]});
  const Tensor embedded(translator.embed(both, {}).array(), true);
  const Tensor states = translator.states(embedded, both, {});
  for (std::int64_t i = 0; i < 5; ++i) {
    const Tensor output = slice(states, 1, i, i + 1);
    const NDArray slope = gradients(sum(output * output * output), {embedded})[0].array()[0];
    for (std::int64_t j = i; j < 5; ++j) EXPECT_EQ(largest_magnitude(slope[j]) == 0, j > i) << i << ", " << j;
  }
}

TEST_P(EncoderDecoderTest, S18_S21_APairIsTheSameAloneOrPaddedOnEitherSide) {
  for (const DType dtype : computing_dtypes(device())) {
    EncoderDecoder translator = model(dtype);
    const NoGrad off;
    for (const PaddingSide side : {PaddingSide::left, PaddingSide::right}) {
      for (const std::int64_t extra : {0, 3}) {
        const NDArray logits = translator.forward(input(kSources, kTargets, side, extra)).array();
        for (std::size_t i = 0; i < kSources.size(); ++i) {
          const NDArray alone = translator.forward(input({kSources[i]}, {kTargets[i]})).array()[0];
          const std::int64_t length = alone.size(0);
          const std::int64_t start = side == PaddingSide::left ? logits.size(1) - length : 0;
          EXPECT_TRUE(agrees(logits[static_cast<std::int64_t>(i)].slice(0, start, start + length), alone));
        }
      }
    }
  }
}

TEST_P(EncoderDecoderTest, S21_EveryLayerReadsTheFinalEncoderOutputThroughItsOwnMaps) {
  const SequenceInput both = input(kSources, kTargets);
  for (std::int64_t layer = 0; layer < config().layers; ++layer) {
    // With the other layers' cross-attention silent, the source still comes through this one's.
    EncoderDecoder one = model();
    for (Parameter& parameter : one.parameters()) {
      const std::string own = "decoder.blocks." + std::to_string(layer) + ".";
      const bool is_cross_out = parameter.name.find(".cross.out.") != std::string::npos;
      if (is_cross_out && !parameter.name.starts_with(own)) {
        const NDArray& array = parameter.tensor.array();
        parameter.tensor.set_array(NDArray::zeros(array.shape(), array.dtype(), array.device()));
      }
    }
    const Tensor logits = one.forward(both);
    sum(logits * logits).backward();
    for (const Parameter& parameter : one.parameters()) {
      if (parameter.name == "encoder.blocks.1.ffn.up.weight") {
        EXPECT_GT(largest_magnitude(parameter.tensor.grad()), 1e-6) << layer;
      }
    }
  }
}

/// All cached logits of a batch, its targets fed in chunks of these sizes.
NDArray cached_logits(EncoderDecoder& model, const SequenceInput& all,
                      const std::vector<std::int64_t>& chunks) {
  const std::int64_t batch = all.ids.size(0), time = all.ids.size(1);
  Cache cache = model.empty_state(batch, time);
  const Pass pass{false, nullptr, &cache};
  Tensors logits;
  for (const std::int64_t size : chunks) {
    const std::int64_t past = cache.past();
    SequenceInput input{all.ids.slice(1, past, past + size), all.real.slice(1, past, past + size), {}};
    if (past == 0) {  // the source is read once
      input.source_ids = all.source_ids;
      input.source_real = all.source_real;
    }
    logits.push_back(model.forward(input, pass));
  }
  return concatenate(logits, 1).array();
}

TEST_P(EncoderDecoderTest, S34_S39_CachedLogitsEqualFullOnes) {
  EncoderDecoder translator = model();
  const NoGrad off;
  for (const PaddingSide side : {PaddingSide::left, PaddingSide::right}) {
    const SequenceInput all = input(kSources, kTargets, side);
    // A row of padding alone is nobody's concern: compared where targets are real.
    const NDArray real = all.real.unsqueeze(2), none = NDArray::scalar(0, exact_dtype(device()), device());
    const NDArray full = select(real, translator.forward(all).array(), none);
    for (const std::vector<std::int64_t>& chunks :
         {std::vector<std::int64_t>{5}, {1, 1, 1, 1, 1}, {2, 3}, {1, 3, 1}}) {
      EXPECT_TRUE(agrees(select(real, cached_logits(translator, all, chunks), none), full));
    }
  }
}

TEST_P(EncoderDecoderTest, S39_KeysAndValuesOfTheSourceAreKeptOnce) {
  EncoderDecoder translator = model(DType::f32);
  const NoGrad off;
  const std::int64_t batch = 2, source = 4, longest = 7;
  Cache cache = translator.empty_state(batch, longest);
  const Pass pass{false, nullptr, &cache};
  const ModelConfig full = config().resolved();
  const std::int64_t a_position = 2 * batch * full.layers * full.key_value_heads * (full.width / full.heads) *
                                  static_cast<std::int64_t>(sizeof(float));
  EXPECT_EQ(cache.bytes(), a_position * longest);
  SequenceInput input{NDArray::zeros({batch, 1}, DType::i64, device()), {}, {}};
  input.source_ids = NDArray::zeros({batch, source}, DType::i64, device());
  translator.forward(input, pass);
  EXPECT_EQ(cache.bytes(), a_position * (longest + source));
  input.source_ids = NDArray();
  translator.forward(input, pass);
  EXPECT_EQ(cache.bytes(), a_position * (longest + source));
}

TEST_P(EncoderDecoderTest, S33_EncoderDecoderAndCrossPairsAreCounted) {
  EncoderDecoder translator = model(DType::f32);
  const NoGrad off;
  const ModelConfig full = config().resolved();
  const double b = 2, s = 6, u = 5, l = static_cast<double>(full.layers);
  // A pair costs 2 (key width + value width) in each head.
  const double pair = b * l * 4 * static_cast<double>(full.width);
  SequenceInput input{NDArray::zeros({2, 5}, DType::i64, device()), {}, {}};
  input.source_ids = NDArray::zeros({2, 6}, DType::i64, device());
  const double own = full.window == 0 ? u * (u + 1) / 2 : 3 * u - 3;  // in a window of 3: 1 + 2 + 3 + 3 + 3
  {
    OperationCounter counter;
    const ObserverScope watch(&counter);
    translator.forward(input);
    EXPECT_EQ(counter.forward("attention"), pair * (s * s + own + s * u));
  }
  // Token by token the encoder runs once, and the rest comes to the same.
  Cache cache = translator.empty_state(2, 5);
  const Pass pass{false, nullptr, &cache};
  OperationCounter counter;
  const ObserverScope watch(&counter);
  for (std::int64_t t = 0; t < 5; ++t) {
    SequenceInput step = input;
    step.ids = input.ids.slice(1, t, t + 1);
    translator.forward(step, pass);
  }
  EXPECT_EQ(counter.forward("attention"), pair * (s * s + own + s * u));
}

TEST_P(EncoderDecoderTest, EveryParameterReceivesAFiniteGradientInAnyPrecision) {
  const SequenceInput both = input(kSources, kTargets);
  const NDArray labels = NDArray::full({3, 5}, 2, DType::i64, device());
  EncoderDecoder exact = model();
  exact.loss(both, labels).backward();
  EXPECT_TRUE(gradients_are_finite(exact));
  const auto half_logits = [&](bool half_residual) {
    const PrecisionScope scope(DType::bf16, half_residual);
    EncoderDecoder translator = model(DType::f32);
    translator.loss(both, labels).backward();
    EXPECT_TRUE(gradients_are_finite(translator));
    const NoGrad off;
    const NDArray real = both.real.unsqueeze(2), none = NDArray::scalar(0, DType::f32, device());
    const NDArray full = translator.forward(both).array();
    EXPECT_TRUE(
        agrees(select(real, cached_logits(translator, both, {2, 3}), none), select(real, full, none), 0.1));
  };
  half_logits(false);
  half_logits(true);
}

TEST_P(EncoderDecoderTest, ParameterCountsFollowTheFormula) {
  EncoderDecoder translator = model();
  EXPECT_EQ(translator.parameter_count(), EncoderDecoder::encoder_config(config()).parameter_count() +
                                              EncoderDecoder::decoder_config(config()).parameter_count());
  const nlohmann::json json = translator.config();
  Generator random(1);
  const auto again = make_model(json.get<ModelConfig>(), random, device(), exact_dtype(device()));
  copy_state(translator, *again);
  const SequenceInput both = input(kSources, kTargets);
  EXPECT_TRUE(same(again->forward(both).array(), translator.forward(both).array()));
}

std::string parameter_name(const testing::TestParamInfo<std::tuple<Device, NamedDecoder>>& place) {
  return test_name(std::get<1>(place.param).name + " " + std::get<0>(place.param).name());
}

INSTANTIATE_TEST_SUITE_P(All, EncoderDecoderTest,
                         testing::Combine(testing::ValuesIn(all_devices()),
                                          testing::ValuesIn(various_encoder_decoders())),
                         parameter_name);

// --- one is enough for the rest ------------------------------------------------------------------------

class TranslatorTest : public OnDevice {
 protected:
  EncoderDecoder model() const {
    ModelConfig config = DecoderConfig::of_size(13, 8, 8, 1, 2);
    config.kind = ModelKind::encoder_decoder;
    Generator random(1);
    return EncoderDecoder(config, random, device(), exact());
  }
};

TEST_P(TranslatorTest, S20_BothNormOrdersHaveTheirParameters) {
  // Width 8, ffn 32: a map of 8 x 8 has 72 numbers, a norm 16, a feed-forward layer 288 + 264.
  const std::int64_t attention = 4 * 72, ffn = 288 + 264, tables = 2 * (13 + 8) * 8;
  const std::int64_t blocks = attention + ffn + 2 * 16 + 2 * attention + ffn + 3 * 16;
  EncoderDecoder pre = model();
  EXPECT_EQ(pre.parameter_count(), tables + blocks + 2 * 16);
  ModelConfig config = pre.config();
  config.order = NormOrder::post;
  Generator random(1);
  EXPECT_EQ(EncoderDecoder(config, random, device()).parameter_count(), tables + blocks);
}

TEST_P(TranslatorTest, S22_TeacherForcingShiftsTheTarget) {
  // sat on the mat = 3 4 5 6; the gray chunky cat = 5 7 8 9.
  RowFormat format;
  format.context = 8;
  format.width_multiple = 1;
  const std::vector<TokenRow> targets{{3, 4, 5, 6}};
  const Batch batch = make_rows_batch(targets, format);
  EXPECT_EQ(batch.ids, (std::vector<std::int64_t>{kBeginId, 3, 4, 5, 6}));
  EXPECT_EQ(batch.labels, (std::vector<std::int64_t>{3, 4, 5, 6, kEndId}));
  EncoderDecoder translator = model();
  SequenceInput input{ids(batch.ids, {1, 5}), {}, {}};
  input.source_ids = ids({5, 7, 8, 9}, {1, 4});
  const Tensor loss = translator.loss(input, ids(batch.labels, {1, 5}));
  // All five labels are scored in one pass, each after the true tokens before it.
  double total = 0;
  for (std::int64_t t = 0; t < 5; ++t) {
    SequenceInput prefix = input;
    prefix.ids = input.ids.slice(1, 0, t + 1);
    const Tensor last = slice(translator.forward(prefix), 1, t, t + 1);
    total += cross_entropy(last, ids({batch.labels[static_cast<std::size_t>(t)]}, {1, 1})).item();
  }
  EXPECT_NEAR(loss.item(), total / 5, within(1e-12));
}

TEST_P(TranslatorTest, ImpossibleInputsAreErrorsThatSayWhy) {
  EncoderDecoder translator = model();
  SequenceInput input{ids({1, 2}, {1, 2}), {}, {}};
  EXPECT_TRUE(contains(error_of([&] { translator.forward(input); }), {"source_ids"}));
  input.source_ids = ids({1, 2, 3, 4}, {2, 2});
  EXPECT_TRUE(contains(error_of([&] { translator.forward(input); }), {"memory", "1 rows"}));
  input.source_ids = ids({1, 2}, {1, 2});
  input.source_real = mask({1, 1, 1}, {1, 3});
  EXPECT_TRUE(contains(error_of([&] { translator.forward(input); }), {"mask", "[1, 2]", "[1, 3]"}));
  input.source_real = NDArray();
  input.source_ids = NDArray::zeros({1, 9}, DType::i64, device());
  EXPECT_TRUE(contains(error_of([&] { translator.forward(input); }), {"source of 9", "context of 8"}));
  EXPECT_TRUE(contains(error_of([&] { translator.empty_state(1, 9); }), {"9", "context of 8"}));
}

TEST_P(TranslatorTest, S05_ASourceOfPaddingAloneIsReadAsZeros) {
  EncoderDecoder translator = model();
  SequenceInput input{ids({1, 2, 1, 2}, {2, 2}), {}, {}};
  input.source_ids = ids({3, 4, 5, 6}, {2, 2});
  input.source_real = mask({0, 0, 1, 1}, {2, 2});
  translator.loss(input, ids({1, 2, 1, 2}, {2, 2})).backward();
  EXPECT_TRUE(gradients_are_finite(translator));
}

INSTANTIATE_TEST_SUITE_P(All, TranslatorTest, testing::ValuesIn(all_devices()), device_name);

}  // namespace
}  // namespace needle
