// What a decoder promises, whatever it is made of: who reads whom, padding, and the key/value cache.
#include "needle/models/decoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "needle/ops/ops.h"
#include "tests/agree.h"
#include "tests/decoders.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

/// Runs once for each device and each of various_decoders().
class DecoderTest : public testing::TestWithParam<std::tuple<Device, NamedDecoder>> {
 protected:
  Device device() const { return std::get<0>(GetParam()); }
  const DecoderConfig& config() const { return std::get<1>(GetParam()).config; }
  Decoder model() const { return make_decoder(config(), device()); }
  Decoder model(DType dtype) const { return make_decoder(config(), device(), dtype); }
};

const std::vector<TokenRow> kRows{{1, 4, 12, 7, 3}, {1, 9}, {5}, {8, 2, 2, 6, 11, 10, 3}};

TEST_P(DecoderTest, S06_LaterTokensLeaveTheLogitsBeforeThemBitIdentical) {
  Decoder decoder = model(DType::f32);
  const NoGrad off;
  const TokenRow row = kRows[3], other = kRows[0];
  const NDArray before = decoder.forward(padded({row, other}, PaddingSide::right, device())).array();
  for (std::size_t i = 1; i < row.size(); ++i) {
    TokenRow changed = row;
    for (std::size_t t = i; t < row.size(); ++t) changed[t] = (changed[t] + 4) % 13;
    const NDArray after = decoder.forward(padded({changed, other}, PaddingSide::right, device())).array();
    const std::int64_t prefix = static_cast<std::int64_t>(i);
    EXPECT_TRUE(same(after[0].slice(0, 0, prefix), before[0].slice(0, 0, prefix)));
    EXPECT_FALSE(same(after[0][prefix], before[0][prefix]));
    EXPECT_TRUE(same(after[1], before[1]));
  }
}

TEST_P(DecoderTest, S06_GradientsOfLaterInputsAreExactlyZero) {
  Decoder decoder = model();
  const SequenceInput input{NDArray::from(kRows[0], {1, 5}, device()), {}, {}};
  const Tensor embedded(decoder.embed(input, {}).array(), true);
  const Tensor logits = decoder.head(decoder.states(embedded, input, {}));
  Generator random(5);
  const Tensor weights(
      NDArray::random({Distribution::Kind::normal, 0, 1}, {13}, random, exact_dtype(device()), device()));
  for (std::int64_t i = 0; i < 5; ++i) {
    const Tensor output = sum(slice(logits, 1, i, i + 1) * weights);
    const NDArray slope = gradients(output, {embedded})[0].array()[0];
    for (std::int64_t j = 0; j < 5; ++j) {
      const double largest = reduce(Max{}, unary(Abs{}, slope[j])).item();
      if (j > i) {
        EXPECT_EQ(largest, 0) << "output " << i << " reads input " << j;
      } else if (j == i) {
        EXPECT_GT(largest, 0);
      }
    }
  }
}

/// The same weights as another decoder that differs in its config alone.
Decoder with_config(Decoder& decoder, const DecoderConfig& config, Device device) {
  Decoder other = make_decoder(config, device, exact_dtype(device), 4);
  copy_state(decoder, other);
  return other;
}

TEST_P(DecoderTest, S08_WithoutItsCausalMaskItIsAnEncoder) {
  if (config().window > 0) return;  // looks back only, so it is causal
  Decoder decoder = model();
  DecoderConfig bidirectional = config();
  bidirectional.causal = false;
  Decoder encoder = with_config(decoder, bidirectional, device());
  TokenRow row = kRows[0];
  const NDArray before = logits_alone(encoder, row, device());
  EXPECT_FALSE(agrees(logits_alone(decoder, row, device())[0], before[0]));
  // Nothing else has changed: a single token reads itself either way.
  EXPECT_TRUE(agrees(logits_alone(decoder, {7}, device()), logits_alone(encoder, {7}, device())));
  row.back() = 8;
  EXPECT_FALSE(agrees(logits_alone(encoder, row, device())[0], before[0]));
  // It fails the boundary check of S06: its first output reads its last input.
  const SequenceInput input{NDArray::from(row, {1, 5}, device()), {}, {}};
  const Tensor embedded(encoder.embed(input, {}).array(), true);
  const Tensor first = slice(encoder.head(encoder.states(embedded, input, {})), 1, 0, 1);
  const NDArray slope = gradients(sum(first * first), {embedded})[0].array();
  EXPECT_GT(reduce(Max{}, unary(Abs{}, slope[0][4])).item(), 0);
}

TEST_P(DecoderTest, S11_WithoutMaskAndPositionsAPermutationIsOnlyAPermutation) {
  if (config().window > 0) return;  // is a mask
  DecoderConfig bidirectional = config();
  bidirectional.causal = false;
  Decoder encoder = make_decoder(bidirectional, device());
  const TokenRow row{3, 9, 1, 12, 5}, permuted{5, 1, 3, 9, 12};
  const std::vector<std::int64_t> from{4, 2, 0, 1, 3};
  const auto logits = [&](const TokenRow& ids, bool with_positions) {
    SequenceInput input{NDArray::from(ids, {1, 5}, device()), {}, {}};
    if (!with_positions) input.positions = NDArray::zeros({1, 5}, DType::i64, device());
    return encoder.forward(input).array()[0];
  };
  const NDArray plain = logits(row, false), moved = logits(permuted, false);
  for (std::int64_t i = 0; i < 5; ++i) {
    EXPECT_TRUE(agrees(moved[i], plain[from[static_cast<std::size_t>(i)]]));
  }
  EXPECT_FALSE(agrees(logits(permuted, true)[0], logits(row, true)[4]));
}

TEST_P(DecoderTest, S18_ARowIsTheSameAloneOrPaddedOnEitherSide) {
  for (const DType dtype : computing_dtypes(device())) {
    Decoder decoder = model(dtype);
    const NoGrad off;
    for (const PaddingSide side : {PaddingSide::left, PaddingSide::right}) {
      // Different companions, widths and PAD ids.
      for (const std::int64_t width : {7, 10}) {
        const SequenceInput input = padded(kRows, side, device(), width, width);
        const NDArray logits = decoder.forward(input).array();
        for (std::size_t i = 0; i < kRows.size(); ++i) {
          const std::int64_t length = std::ssize(kRows[i]);
          const std::int64_t start = side == PaddingSide::left ? width - length : 0;
          const NDArray real = logits[static_cast<std::int64_t>(i)].slice(0, start, start + length);
          EXPECT_TRUE(agrees(real, logits_alone(decoder, kRows[i], device())));
        }
      }
    }
  }
}

TEST_P(DecoderTest, S34_CachedLogitsEqualFullOnesInChunksOfAnySize) {
  Decoder decoder = model();
  const NoGrad off;
  const TokenRow row{8, 2, 2, 6, 11, 10, 3, 1, 9};
  const std::int64_t time = std::ssize(row);
  const NDArray ids = NDArray::from(row, {1, time}, device());
  const NDArray full = decoder.forward({ids, {}, {}}).array();
  for (const std::vector<std::int64_t>& chunks :
       {std::vector<std::int64_t>{9}, {1, 1, 1, 1, 1, 1, 1, 1, 1}, {4, 5}, {5, 1, 3}}) {
    Cache cache = decoder.empty_state(1, time);
    const Pass pass{false, nullptr, &cache};
    std::int64_t past = 0;
    for (const std::int64_t size : chunks) {
      const NDArray logits = decoder.forward({ids.slice(1, past, past + size), {}, {}}, pass).array();
      EXPECT_TRUE(agrees(logits, full.slice(1, past, past + size))) << "after " << past;
      past += size;
    }
  }
}

TEST_P(DecoderTest, S34_CachedLogitsEqualFullOnesInPaddedBatches) {
  Decoder decoder = model();
  const NoGrad off;
  const std::vector<TokenRow> endings{{3, 7}, {2, 10}, {4, 4}, {12, 5}};
  for (const PaddingSide side : {PaddingSide::left, PaddingSide::right}) {
    Cache cache = decoder.empty_state(4, 9);
    const Pass pass{false, nullptr, &cache};
    decoder.forward(padded(kRows, side, device()), pass);
    for (std::size_t step = 0; step < 2; ++step) {
      std::vector<TokenRow> next;
      for (const TokenRow& ending : endings) next.push_back({ending[step]});
      SequenceInput input = padded(next, side, device());
      input.real = NDArray();
      const NDArray logits = decoder.forward(input, pass).array();
      for (std::size_t i = 0; i < kRows.size(); ++i) {
        TokenRow whole = kRows[i];
        whole.insert(whole.end(), endings[i].begin(), endings[i].begin() + static_cast<int>(step) + 1);
        EXPECT_TRUE(
            agrees(logits[static_cast<std::int64_t>(i)][0], logits_alone(decoder, whole, device())[-1]))
            << "row " << i << ", step " << step;
      }
    }
  }
}

std::string parameter_name(const testing::TestParamInfo<std::tuple<Device, NamedDecoder>>& info) {
  return test_name(std::get<1>(info.param).name + " " + std::get<0>(info.param).name());
}

INSTANTIATE_TEST_SUITE_P(All, DecoderTest,
                         testing::Combine(testing::ValuesIn(all_devices()),
                                          testing::ValuesIn(various_decoders())),
                         parameter_name);

// --- one decoder is enough for the rest ----------------------------------------------------------------

class PlainDecoderTest : public OnDevice {
 protected:
  Decoder model() const { return make_decoder(various_decoders()[0].config, device()); }
};

/// Inputs, mask and labels of [B a b E] and of a longer row, left-padded.
struct LabelledBatch {
  SequenceInput input;
  NDArray labels;
};

LabelledBatch labelled(const std::vector<TokenRow>& sequences, PaddingSide side, Device device) {
  RowFormat format;
  format.context = 11;
  format.width_multiple = 1;
  format.padding = side;
  const Batch batch = make_shifted_batch(sequences, format);
  return {input_of(batch, device), labels_of(batch, device)};
}

TEST_P(PlainDecoderTest, S14_AttentionAndLossLeavePaddingOutEachForItself) {
  Decoder decoder = model();
  const std::vector<TokenRow> sequences{{1, 5, 6, 2}, {1, 7, 8, 9, 10, 3, 2}};
  const auto loss_of = [&](const SequenceInput& input, const NDArray& labels) {
    return cross_entropy(decoder.forward(input), labels).item();
  };
  double total = 0;
  for (const TokenRow& sequence : sequences) {
    const LabelledBatch alone = labelled({sequence}, PaddingSide::right, device());
    total += loss_of(alone.input, alone.labels) * static_cast<double>(std::ssize(sequence) - 1);
  }
  const double right = total / 9;
  for (const PaddingSide side : {PaddingSide::left, PaddingSide::right}) {
    const LabelledBatch batch = labelled(sequences, side, device());
    EXPECT_NEAR(loss_of(batch.input, batch.labels), right, within(1e-12));
    // The labels alone do not keep attention from reading PAD on the left.
    SequenceInput unmasked = batch.input;
    unmasked.real = NDArray();
    const double leak = std::abs(loss_of(unmasked, batch.labels) - right);
    EXPECT_EQ(leak > 1e-3, side == PaddingSide::left) << leak;
    // The mask alone does not keep PAD labels out of the loss.
    const NDArray scored = select(binary(Equal{}, batch.labels, NDArray::scalar(-100, DType::i64, device())),
                                  NDArray::scalar(0, DType::i64, device()), batch.labels);
    EXPECT_GT(std::abs(loss_of(batch.input, scored) - right), 1e-3);
  }
}

TEST_P(PlainDecoderTest, S17_NextTokenLogitsSitAtTheLastRealPosition) {
  Decoder decoder = model();
  const NoGrad off;
  const NDArray right = decoder.forward(padded(kRows, PaddingSide::right, device())).array();
  const NDArray left = decoder.forward(padded(kRows, PaddingSide::left, device())).array();
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    const std::int64_t row = static_cast<std::int64_t>(i);
    const NDArray wanted = logits_alone(decoder, kRows[i], device())[-1];
    EXPECT_TRUE(agrees(right[row][std::ssize(kRows[i]) - 1], wanted));
    EXPECT_TRUE(agrees(left[row][-1], wanted));
    EXPECT_EQ(bool(agrees(right[row][-1], wanted)), kRows[i].size() == 7);
  }
}

TEST_P(PlainDecoderTest, S35_TheMaskComparesAbsolutePositions) {
  Decoder decoder = model();
  const NoGrad off;
  Cache cache = decoder.empty_state(1, 6);
  const Pass pass{false, nullptr, &cache};
  decoder.forward({ids({1, 4, 12, 7}, {1, 4}), {}, {}}, pass);
  EXPECT_EQ(cache.past(), 4);
  EXPECT_EQ(cache.lengths(), std::vector<std::int64_t>{4});
  const NDArray chunk = decoder.forward({ids({3, 9}, {1, 2}), {}, {}}, pass).array()[0];
  EXPECT_TRUE(agrees(chunk, logits_alone(decoder, {1, 4, 12, 7, 3, 9}, device()).slice(0, 4, 6)));
  // A fresh triangle would make the chunk read the oldest keys alone.
  EXPECT_FALSE(agrees(chunk, logits_alone(decoder, {3, 9}, device())));
}

TEST_P(PlainDecoderTest, S36_TheCacheReportsItsBytes) {
  DecoderConfig config = various_decoders()[0].config;
  config.key_value_heads = 1;
  Decoder decoder = make_decoder(config, device(), DType::f32);
  const std::size_t live = device()->memory_stats().live;
  const Cache cache = decoder.empty_state(3, 9);
  EXPECT_EQ(cache.bytes(), std::size_t{2 * 3 * 2 * 9 * 1 * 4 * 4});
  EXPECT_EQ(device()->memory_stats().live - live, cache.bytes());
}

TEST_P(PlainDecoderTest, S38_ACacheThatCannotHoldIsAnError) {
  DecoderConfig config = various_decoders()[0].config;
  config.causal = false;
  Decoder encoder = make_decoder(config, device());
  EXPECT_TRUE(contains(error_of([&] { encoder.empty_state(1, 4); }), {"causal mask", "bidirectional"}));
  Decoder decoder = model();
  EXPECT_TRUE(contains(error_of([&] { decoder.empty_state(1, 12); }), {"12 positions", "context of 11"}));
  Cache cache = decoder.empty_state(1, 3);
  const NoGrad off;
  EXPECT_TRUE(contains(error_of([&] {
                         decoder.forward({ids({1, 2, 3, 4}, {1, 4}), {}, {}}, {false, nullptr, &cache});
                       }),
                       {"cache", "4 more", "room for 3"}));
}

TEST_P(PlainDecoderTest, BR010_LeftPaddedRowsCountTheirOwnPositions) {
  const NDArray real = mask({0, 0, 1, 1, 1, 1, 1, 1, 1, 1}, {2, 5});
  EXPECT_EQ(position_ids(real).to_vector<std::int64_t>(),
            (std::vector<std::int64_t>{0, 0, 0, 1, 2, 0, 1, 2, 3, 4}));
  Cache cache = model().empty_state(2, 7);
  cache.begin(5, real);
  cache.finish();
  for (const std::vector<std::int64_t>& wanted : {std::vector<std::int64_t>{3, 5}, {4, 6}}) {
    EXPECT_EQ(position_ids(mask({1, 1}, {2, 1}), cache.lengths()).to_vector<std::int64_t>(), wanted);
    cache.begin(1, {});
    cache.finish();
  }
}

TEST_P(PlainDecoderTest, BR011_RightPaddedPromptsGoOnAtTheirOwnPositions) {
  Decoder decoder = model();
  const NoGrad off;
  Cache cache = decoder.empty_state(2, 4);
  const Pass pass{false, nullptr, &cache};
  const NDArray logits =
      decoder.forward(padded({{5, 6, 7}, {8}}, PaddingSide::right, device()), pass).array();
  EXPECT_TRUE(agrees(logits[1][0], logits_alone(decoder, {8}, device())[0]));
  EXPECT_EQ(cache.lengths(), (std::vector<std::int64_t>{3, 1}));  // the positions of the next tokens
  const NDArray next = decoder.forward({ids({3, 2}, {2, 1}), {}, {}}, pass).array();
  EXPECT_TRUE(agrees(next[0][0], logits_alone(decoder, {5, 6, 7, 3}, device())[-1]));
  EXPECT_TRUE(agrees(next[1][0], logits_alone(decoder, {8, 2}, device())[-1]));
}

TEST_P(PlainDecoderTest, S43_AWindowCountsRealTokensWithAndWithoutACache) {
  DecoderConfig config = various_decoders()[0].config;
  config.window = 2;
  Decoder decoder = make_decoder(config, device());
  const NoGrad off;
  const SequenceInput gap{ids({5, 6, 0, 7, 8}, {1, 5}), mask({1, 1, 0, 1, 1}, {1, 5}), {}};
  Cache cache = decoder.empty_state(1, 5);
  const NDArray alone = logits_alone(decoder, {5, 6, 7, 8}, device());
  for (const Pass& pass : {Pass{}, Pass{false, nullptr, &cache}}) {
    const NDArray logits = decoder.forward(gap, pass).array()[0];
    EXPECT_TRUE(agrees(logits.slice(0, 3, 5), alone.slice(0, 2, 4)));
  }
}

TEST_P(PlainDecoderTest, S38_ACacheCannotBeDifferentiatedThrough) {
  Decoder decoder = model();
  Cache cache = decoder.empty_state(1, 3);
  EXPECT_TRUE(contains(error_of([&] {
                         decoder.forward({ids({1, 2}, {1, 2}), {}, {}}, {false, nullptr, &cache});
                       }),
                       {"cache", "NoGrad"}));
}

TEST_P(PlainDecoderTest, BadInputIsAnErrorThatSaysWhy) {
  Decoder decoder = model();
  const std::vector<std::int64_t> twelve(12, 1);
  EXPECT_TRUE(contains(error_of([&] {
                         decoder.forward({ids(twelve, {1, 12}), {}, {}});
                       }),
                       {"position 11", "context of 11"}));
  EXPECT_TRUE(contains(error_of([&] { decoder.forward({ids({1, -2}, {1, 2}), {}, {}}); }), {"-2"}));
  EXPECT_TRUE(contains(error_of([&] { decoder.forward({ids({1, 13}, {1, 2}), {}, {}}); }), {"13"}));
  EXPECT_TRUE(contains(error_of([&] {
                         decoder.forward({ids({1, 2}, {2}), {}, {}});
                       }),
                       {"ids [batch, time]"}));
  EXPECT_TRUE(contains(error_of([&] {
                         decoder.forward({ids({1, 2}, {1, 2}), mask({1}, {1, 1}), {}});
                       }),
                       {"mask", "[1, 2]"}));
}

TEST_P(PlainDecoderTest, StrictModeNamesARealQueryWithoutKeys) {
  DecoderConfig config = various_decoders()[0].config;
  config.strict = true;
  Decoder decoder = make_decoder(config, device());
  // A PAD query without keys is nobody's business; every real query can read itself.
  EXPECT_NO_THROW(decoder.forward(padded(kRows, PaddingSide::left, device())));
}

INSTANTIATE_TEST_SUITE_P(All, PlainDecoderTest, testing::ValuesIn(all_devices()), device_name);

}  // namespace
}  // namespace needle
