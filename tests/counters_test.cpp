// Counting arithmetic: formulas of cost against what really runs.
#include "needle/counters.h"

#include <gtest/gtest.h>

#include "needle/models/decoder.h"
#include "needle/ops/ops.h"
#include "tests/agree.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

class CountersTest : public OnDevice {
 protected:
  /// Operations of the products in one block's forward pass over [batch, time, width].
  double block_products(std::int64_t batch, std::int64_t time, std::int64_t width, bool causal) const {
    BlockConfig config;
    config.width = width;
    config.heads = config.key_value_heads = 2;
    config.ffn = 4 * width;
    config.causal = causal;
    Generator random(1);
    const Block block(config, {random, device()});
    OperationCounter counter;
    const ObserverScope watch(&counter);
    block.forward(Tensor(normal({batch, time, width}, 1, DType::f32)), {}, {}, 0);
    return counter.forward_products();
  }
};

TEST_P(CountersTest, S31_AProductIsCountedAsTwiceItsMultiplications) {
  OperationCounter counter;
  const ObserverScope watch(&counter);
  const auto tensor = [&](const Shape& shape) { return Tensor(normal(shape, 1, DType::f32)); };
  matmul(tensor({3, 5}), tensor({5, 7}));
  EXPECT_EQ(counter.forward("matmul"), 2 * 3 * 5 * 7);
  matmul(tensor({2, 4, 3, 5}), tensor({4, 5, 7}));
  EXPECT_EQ(counter.forward("matmul"), 2 * 3 * 5 * 7 * (1 + 8));
  EXPECT_EQ(counter.sum(Phase::forward, "matmul").calls, 2u);
  linear(tensor({2, 3, 5}), tensor({5, 7}), tensor({7}));
  EXPECT_EQ(counter.forward("linear"), 2 * 6 * 5 * 7);
  matmul_transposed(tensor({2, 3, 5}), tensor({7, 5}));
  EXPECT_EQ(counter.forward("matmul_transposed"), 2 * 6 * 5 * 7);
  EXPECT_EQ(counter.forward_products(), 2 * 3 * 5 * 7 * 13);
  exp(tensor({3, 4}));
  EXPECT_EQ(counter.forward("exp"), 12);
  EXPECT_EQ(counter.forward("tanh"), 0);
}

TEST_P(CountersTest, S31_ABlockCosts24BTD2And4BT2D) {
  for (const auto& [batch, time, width] :
       std::vector<std::tuple<int, int, int>>{{1, 7, 6}, {3, 12, 8}, {2, 48, 8}}) {
    const double b = batch, t = time, d = width;
    EXPECT_EQ(block_products(batch, time, width, false), 24 * b * t * d * d + 4 * b * t * t * d);
    EXPECT_EQ(block_products(batch, time, width, true), 24 * b * t * d * d + 2 * b * t * (t + 1) * d);
  }
  // The two terms are equal at T = 6 D.
  EXPECT_EQ(block_products(1, 48, 8, false), 2 * 24 * 48 * 8 * 8);
}

TEST_P(CountersTest, S31_ADecoderCostsItsBlocksAndItsHead) {
  DecoderConfig config = DecoderConfig::of_size(11, 9, 8, 3, 2);
  Generator random(1);
  Decoder model(config, random, device());
  OperationCounter counter;
  const ObserverScope watch(&counter);
  model.forward({NDArray::zeros({2, 9}, DType::i64, device()), {}, {}});
  const double blocks = 3 * (24 * 2 * 9 * 8 * 8 + 2 * 2 * 9 * 10 * 8), head = 2 * 2 * 9 * 8 * 11;
  EXPECT_EQ(counter.forward_products(), blocks + head);
}

/// A case of who may read whom, over [2, 2, 3, 5].
struct MaskCase {
  std::string name;
  AttentionOptions options;
};

TEST_P(CountersTest, S31_AttentionCountsThePairsThatItsMasksAllow) {
  const NDArray key_mask = mask({0, 1, 1, 1, 1, 1, 1, 1, 1, 0}, {2, 5});
  const NDArray allowed = mask({1, 0, 1, 0, 1, 0, 1, 1, 0, 0, 1, 1, 0, 1, 1}, {1, 1, 3, 5});
  std::vector<MaskCase> cases;
  for (const bool causal : {false, true}) {
    for (const std::int64_t window : {0, 2}) {
      for (const NDArray& keys : {NDArray(), key_mask}) {
        for (const NDArray& pairs : {NDArray(), allowed}) {
          for (const std::int64_t offset : {-1, 0, 2}) {
            AttentionOptions options;
            options.causal = causal;
            options.window = window;
            options.offset = offset;
            options.key_mask = keys;
            options.allowed = pairs;
            cases.push_back({std::to_string(cases.size()), options});
          }
        }
      }
    }
  }
  for (const auto& [name, options] : cases) {
    const Shape full{2, 2, 3, 5};
    const NDArray pairs = allowed_pairs(options, 3, 5, device()).broadcast_to(full);
    const double wanted = reduce(Sum{}, pairs.cast(exact())).item();
    OperationCounter counter;
    const ObserverScope watch(&counter);
    attention(Tensor(normal({2, 2, 3, 4}, 1)), Tensor(normal({2, 1, 5, 4}, 2)),
              Tensor(normal({2, 1, 5, 6}, 3)), options);
    EXPECT_EQ(counter.forward("attention"), 2 * (4 + 6) * wanted) << name;
  }
}

TEST_P(CountersTest, S37_DecodingReadsEachPastOnce) {
  DecoderConfig config = DecoderConfig::of_size(11, 16, 8, 1, 2);
  Generator random(1);
  Decoder model(config, random, device());
  Cache cache = model.empty_state(1, 16);
  const Pass pass{false, nullptr, &cache};
  const NoGrad off;
  model.forward({NDArray::zeros({1, 6}, DType::i64, device()), {}, {}}, pass);
  OperationCounter counter;
  const ObserverScope watch(&counter);
  for (int step = 0; step < 5; ++step) model.forward({ids({1}, {1, 1}), {}, {}}, pass);
  const double pairs = 5 * 6 + 5 * 6 / 2;  // G P + G (G + 1) / 2
  EXPECT_EQ(counter.forward("attention"), 2 * 2 * (4 + 4) * pairs);
}

TEST_P(CountersTest, TheBackwardPassIsCountedApart) {
  OperationCounter counter;
  AttentionOptions options;
  options.allowed = mask({1, 0, 1, 0, 1, 0, 1, 1, 0, 0, 1, 1, 0, 1, 1}, {1, 1, 3, 5});
  const Tensor query(normal({2, 2, 3, 4}, 1), true), key(normal({2, 1, 5, 4}, 2), true);
  const Tensor value(normal({2, 1, 5, 6}, 3), true), weight(normal({6, 2}, 4), true);
  const ObserverScope watch(&counter);
  const Tensor y = matmul(attention(query, key, value, options), weight);
  const double attended = counter.forward("attention"), products = counter.forward_products();
  EXPECT_EQ(attended, 2 * (4 + 6) * 4 * 9);
  EXPECT_EQ(products, attended + 2 * 12 * 6 * 2);
  EXPECT_EQ(counter.sum(Phase::backward).calls, 0u);
  sum(y).backward();
  EXPECT_EQ(counter.forward_products(), products);
  // Two products for each of the forward pass, and the scores once more.
  EXPECT_EQ(counter.products(Phase::backward), 2.5 * attended + 2 * 2 * 12 * 6 * 2);
  EXPECT_TRUE(key.grad().defined());
}

TEST_P(CountersTest, BytesAreThoseOfWhatAnOpTakesAndGives) {
  const double number = static_cast<double>(size_of(exact()));
  const Tensor x(normal({2, 3}, 1)), weight(normal({3, 4}, 2), true), bias(normal({4}, 3), true);
  OperationCounter counter;
  const ObserverScope watch(&counter);
  const Tensor y = linear(x, weight, bias, Epilogue::gelu);
  const OpTally forward = counter.sum(Phase::forward, "linear_gelu");
  EXPECT_EQ(forward.bytes_read, number * (6 + 12 + 4));
  EXPECT_EQ(forward.bytes_written, number * 8);
  EXPECT_EQ(forward.bytes_kept, number * (6 + 8));  // x, and the slope of the activation
  const Tensor same = reshape(y, {8});
  EXPECT_EQ(counter.sum(Phase::forward, "reshape").bytes_read, 0);
  EXPECT_EQ(counter.sum(Phase::forward, "reshape").bytes_kept, 0);
  same.backward(normal({8}, 4));
  const OpTally backward = counter.sum(Phase::backward, "linear_gelu");
  EXPECT_EQ(backward.bytes_read, number * (8 + 6 + 12 + 4));
  EXPECT_EQ(backward.bytes_written, number * (12 + 4));
  EXPECT_EQ(backward.bytes_kept, number * (12 + 4));  // the gradients of the parameters
}

TEST_P(CountersTest, KeptBytesAreTheMemoryThatTheGraphHolds) {
  for (const bool gated : {false, true}) {
    BlockConfig config;
    config.width = 8;
    config.heads = config.key_value_heads = 2;
    config.ffn = 20;
    if (gated) config.activation = Activation::gated;
    Generator random(1);
    const Block block(config, {random, device()});
    const Tensor x(normal({2, 5, 8}, 1, DType::f32));
    const std::size_t before = device()->memory_stats().live;
    OperationCounter counter;
    const ObserverScope watch(&counter);
    const Tensor y = block.forward(x, {}, {}, 0);
    const double held = static_cast<double>(device()->memory_stats().live - before),
                 own = static_cast<double>(x.array().bytes());  // x is kept, but was there; y is not kept
    EXPECT_EQ(counter.sum(Phase::forward).bytes_kept - own, held - own);
    const NoGrad off;
    OperationCounter none;
    const ObserverScope watch_again(&none);
    block.forward(x, {}, {}, 0);
    EXPECT_EQ(none.sum(Phase::forward).bytes_kept, 0);
    EXPECT_EQ(none.forward_products(), counter.forward_products());
  }
}

INSTANTIATE_TEST_SUITE_P(All, CountersTest, testing::ValuesIn(all_devices()), device_name);

}  // namespace
}  // namespace needle
