// Encoders: a decoder's weights under another mask, masked tokens, and whole sequences.
#include "needle/models/encoder.h"

#include <gtest/gtest.h>

#include <cmath>

#include "needle/data/masking.h"
#include "needle/models/model.h"
#include "needle/ops/ops.h"
#include "needle/optim/optimizer.h"
#include "needle/precision.h"
#include "tests/agree.h"
#include "tests/decoders.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

class EncoderTest : public OnDevice {
 protected:
  static ModelConfig config_of(ModelKind kind) {
    ModelConfig config = DecoderConfig::of_size(13, 11, 12, 2, 3);
    config.kind = kind;
    return config;
  }
  std::unique_ptr<SequenceModel> make(const ModelConfig& config, DType dtype) const {
    Generator random(3);
    std::unique_ptr<SequenceModel> model = make_model(config, random, device(), dtype);
    enlarge_weights(*model, random);
    return model;
  }
  std::unique_ptr<SequenceModel> make(ModelKind kind) const { return make(config_of(kind), exact()); }
};

const std::vector<TokenRow> kRows{{1, 4, 12, 7, 3}, {1, 9}, {8, 2, 2, 6, 11, 10, 3}};

TEST_P(EncoderTest, S08_AnEncoderIsADecoderUnderAnotherMask) {
  const auto decoder = make(ModelKind::decoder), encoder = make(ModelKind::encoder);
  copy_state(*decoder, *encoder);  // the same names
  EXPECT_EQ(encoder->parameter_count(), encoder->config().parameter_count());
  EXPECT_FALSE(encoder->config().causal);
  const NoGrad off;
  const SequenceInput input{ids(kRows[0], {1, 5}), {}, {}};
  const NDArray causal = decoder->forward(input).array(), both_ways = encoder->forward(input).array();
  EXPECT_FALSE(agrees(both_ways[0][0], causal[0][0]));
  ModelConfig unmasked = config_of(ModelKind::decoder);
  unmasked.causal = false;
  const auto same_weights = make(unmasked, exact());
  EXPECT_TRUE(same(same_weights->forward(input).array(), both_ways));
  // A single token reads itself either way.
  const SequenceInput single{ids({7}, {1, 1}), {}, {}};
  EXPECT_TRUE(agrees(decoder->forward(single).array(), encoder->forward(single).array()));
}

TEST_P(EncoderTest, S06_ItsFirstOutputReadsItsLastInput) {
  const auto encoder = make(ModelKind::encoder);
  const SequenceInput input{ids(kRows[0], {1, 5}), {}, {}};
  const Tensor embedded(encoder->embed(input, {}).array(), true);
  const Tensor first = slice(encoder->states(embedded, input, {}), 1, 0, 1);
  const NDArray slope = gradients(sum(first * first), {embedded})[0].array();
  EXPECT_GT(largest_magnitude(slope[0][4]), 0);
}

TEST_P(EncoderTest, S18_ARowIsTheSameAloneOrPadded) {
  const auto encoder = make(ModelKind::encoder);
  const NoGrad off;
  for (const PaddingSide side : {PaddingSide::left, PaddingSide::right}) {
    const NDArray logits = encoder->forward(padded(kRows, side, device(), 9, 9)).array();
    for (std::size_t i = 0; i < kRows.size(); ++i) {
      const std::int64_t length = std::ssize(kRows[i]), start = side == PaddingSide::left ? 9 - length : 0;
      const NDArray alone = encoder->forward({ids(kRows[i], {1, length}), {}, {}}).array()[0];
      EXPECT_TRUE(agrees(logits[static_cast<std::int64_t>(i)].slice(0, start, start + length), alone));
    }
  }
}

TEST_P(EncoderTest, S38_ItHasNoCacheAndNoWindow) {
  const auto encoder = make(ModelKind::encoder);
  EXPECT_TRUE(contains(error_of([&] { encoder->empty_state(1, 4); }), {"causal mask", "bidirectional"}));
  ModelConfig config = config_of(ModelKind::encoder);
  config.window = 3;
  EXPECT_TRUE(contains(error_of([&] { make(config, exact()); }), {"window", "both ways"}));
}

// --- masked tokens -------------------------------------------------------------------------------------

Batch batch_of(const std::vector<TokenRow>& rows, PaddingSide side, std::int64_t width_multiple = 1) {
  RowFormat format;
  format.context = 64;
  format.padding = side;
  format.width_multiple = width_multiple;
  return make_rows_batch(rows, format);
}

TEST(MaskingTest, S26_AFractionOfTheRealTokensIsMaskedAndScored) {
  std::vector<TokenRow> rows;
  Generator random(5);
  for (int row = 0; row < 300; ++row) {
    TokenRow tokens(static_cast<std::size_t>(5 + random.below(20)));
    for (std::int64_t& token : tokens) token = 3 + random.below(10);
    rows.push_back(tokens);
  }
  for (const double fraction : {0.15, 0.0, 0.5, 1.0}) {
    const Batch before = batch_of(rows, PaddingSide::right);
    Masking masking;
    masking.mask_id = 13;
    if (fraction != 0.15) masking.fraction = fraction;  // which is the default
    const Batch after = mask_tokens(before, masking, Generator(1));
    std::int64_t real = 0, masked = 0;
    for (std::size_t i = 0; i < before.ids.size(); ++i) {
      const bool scored = after.labels[i] != -100;
      real += before.real[i];
      masked += scored;
      EXPECT_EQ(after.ids[i], scored ? 13 : before.ids[i]);
      EXPECT_TRUE(!scored || (before.real[i] == 1 && after.labels[i] == before.ids[i]));
    }
    const double deviation = std::sqrt(fraction * (1 - fraction) / static_cast<double>(real));
    EXPECT_NEAR(static_cast<double>(masked) / static_cast<double>(real), fraction, 4 * deviation);
    EXPECT_EQ(after.valid_targets, masked);
    EXPECT_EQ(after.real, before.real);
    EXPECT_EQ(after.positions, before.positions);
  }
  EXPECT_TRUE(contains(error_of([] { mask_tokens({}, {13, 1.5}, Generator(1)); }), {"[0, 1]", "1.5"}));
}

TEST(MaskingTest, S26_MasksDependOnSeedAndExampleAlone) {
  const std::vector<TokenRow> rows{{3, 4, 5, 6, 7, 8, 9, 10}, {5, 5}, {9, 8, 7, 6, 5, 4, 3, 4, 5, 6}};
  const Masking masking{13, 0.5};
  const auto masked = [&](const Batch& batch, std::uint64_t seed, std::int64_t first) {
    return mask_tokens(batch, masking, Generator(seed), first);
  };
  const Batch all = masked(batch_of(rows, PaddingSide::right), 1, 7);
  EXPECT_EQ(masked(batch_of(rows, PaddingSide::right), 1, 7).ids, all.ids);
  EXPECT_NE(masked(batch_of(rows, PaddingSide::right), 2, 7).ids, all.ids);
  EXPECT_NE(masked(batch_of(rows, PaddingSide::right), 1, 8).ids, all.ids);
  // Neither companions nor padding matter.
  const Batch last = masked(batch_of({rows[2]}, PaddingSide::left, 16), 1, 9);
  const auto real_part = [](const std::vector<std::int64_t>& numbers, std::ptrdiff_t start) {
    return std::vector(numbers.begin() + start, numbers.begin() + start + 11);
  };
  EXPECT_EQ(real_part(last.ids, 5), real_part(all.ids, 22));
  EXPECT_EQ(real_part(last.labels, 5), real_part(all.labels, 22));
}

TEST_P(EncoderTest, S26_MaskedTokensAreLearntFromBothSides) {
  // A row repeats its token: a masked first one stands in the tokens after it alone.
  const auto loss_after_training = [&](ModelKind kind) {
    ModelConfig config = DecoderConfig::of_size(9, 4, 16, 1, 2);  // tokens up to 7, and the mask
    config.kind = kind;
    Generator random(1);
    const auto model = make_model(config, random, device());
    Adam optimizer(groups_by_rank(model->parameters(), 0), AdamDecay::decoupled);
    double last = 0;
    for (int step = 0; step < 60; ++step) {
      std::vector<std::int64_t> tokens, labels;
      for (int row = 0; row < 16; ++row) {
        const std::int64_t token = 3 + random.below(5);
        tokens.insert(tokens.end(), {8, token, token, token});
        labels.insert(labels.end(), {token, -100, -100, -100});
      }
      const Tensor loss = model->loss({ids(tokens, {16, 4}), {}, {}}, ids(labels, {16, 4}));
      last = loss.item();
      loss.backward();
      optimizer.step(1e-2);
      optimizer.clear_gradients();
    }
    return last;
  };
  if (device() != cpu()) return;
  EXPECT_LT(loss_after_training(ModelKind::encoder), 0.1);
  EXPECT_GT(loss_after_training(ModelKind::decoder), 0.9 * std::log(5));
}

// --- whole sequences -----------------------------------------------------------------------------------

TEST_P(EncoderTest, S26_TheMeanStateLeavesPaddingOut) {
  const NDArray real = mask({1, 1, 0, 0, 1, 0, 0, 0, 0}, {3, 3});
  const NDArray numbers = array({1, 2, 3, 6, NAN, 7, NAN, 8, 4, 5, 9, 9, 1, 1, 1, 1, 1, 1}, {3, 3, 2});
  const Tensor states(numbers, true);
  const Tensor mean = mean_state(states, real);
  EXPECT_TRUE(agrees(mean.array(), array({2, 4, 4, 5, 0, 0}, {3, 2})));
  sum(mean).backward();
  EXPECT_TRUE(
      agrees(states.grad(), array({.5, .5, .5, .5, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0}, {3, 3, 2})));
  const Tensor all(normal({2, 3, 4}, 1));
  EXPECT_TRUE(agrees(mean_state(all).array(), mean_state(all, mask({1, 1, 1, 1, 1, 1}, {2, 3})).array()));
  EXPECT_TRUE(contains(error_of([&] { mean_state(all, real); }), {"mean_state", "[2, 3]"}));
}

TEST_P(EncoderTest, S26_TheClassStateIsThatOfTheFirstRealPosition) {
  const Tensor states(normal({2, 3, 4}, 1));
  const NDArray first = class_state(states).array();
  EXPECT_TRUE(same(first, states.array().slice(1, 0, 1).squeeze(1)));
  EXPECT_TRUE(same(class_state(states, mask({1, 1, 0, 1, 0, 0}, {2, 3})).array(), first));
  const NDArray padded_left = class_state(states, mask({0, 1, 1, 0, 0, 1}, {2, 3})).array();
  EXPECT_TRUE(same(padded_left[0], states.array()[0][1]));
  EXPECT_TRUE(same(padded_left[1], states.array()[1][2]));
  EXPECT_TRUE(contains(error_of([&] { class_state(states, mask({1, 1, 1, 0, 0, 0}, {2, 3})); }), {"row 1"}));
}

TEST_P(EncoderTest, S26_SequencesAreClassifiedByMeanOrClassToken) {
  // The class: whether token 5 stands anywhere in the row.
  for (const bool by_mean : {true, false}) {
    ModelConfig config = DecoderConfig::of_size(13, 11, 16, 1, 2);
    config.kind = ModelKind::encoder;
    Generator random(1);
    const auto model = make_model(config, random, device());
    Adam optimizer(groups_by_rank(model->parameters(), 0), AdamDecay::decoupled);
    double correct = 0;
    const int steps = many(200);
    for (int step = 0; step < steps; ++step) {
      std::vector<TokenRow> rows;
      std::vector<std::int64_t> classes;
      for (int i = 0; i < 16; ++i) {
        TokenRow row(static_cast<std::size_t>(3 + random.below(7)));
        for (std::int64_t& token : row) token = 6 + random.below(7);
        row[0] = 1;
        classes.push_back(random.below(2));
        if (classes.back() == 1) row[static_cast<std::size_t>(1 + random.below(std::ssize(row) - 1))] = 5;
        rows.push_back(row);
      }
      const SequenceInput input = padded(rows, step % 2 ? PaddingSide::left : PaddingSide::right, device());
      const Tensor states = model->states(model->embed(input, {}), input, {});
      const Tensor logits =
          model->head(by_mean ? mean_state(states, input.real) : class_state(states, input.real));
      EXPECT_EQ(logits.shape(), (Shape{16, 13}));
      cross_entropy(logits, ids(classes, {16})).backward();
      optimizer.step(1e-2);
      optimizer.clear_gradients();
      if (step < steps - 10) continue;
      const std::vector<std::int64_t> guesses = argmax(logits.array()).to_vector<std::int64_t>();
      for (std::size_t i = 0; i < 16; ++i) correct += guesses[i] == classes[i];
    }
    if (device() == cpu()) {
      EXPECT_GT(correct / 160, 0.95) << (by_mean ? "mean" : "class token");
    }
  }
}

TEST_P(EncoderTest, SixteenBitProductsGiveFiniteGradients) {
  for (const bool half_residual : {false, true}) {
    const PrecisionScope scope(DType::bf16, half_residual);
    const auto encoder = make(config_of(ModelKind::encoder), DType::f32);
    const SequenceInput input = padded(kRows, PaddingSide::right, device());
    const Tensor states = encoder->states(encoder->embed(input, {}), input, {});
    cross_entropy(encoder->head(mean_state(states, input.real)), ids({1, 2, 3}, {3})).backward();
    EXPECT_TRUE(gradients_are_finite(*encoder));
  }
}

INSTANTIATE_TEST_SUITE_P(All, EncoderTest, testing::ValuesIn(all_devices()), device_name);

}  // namespace
}  // namespace needle
