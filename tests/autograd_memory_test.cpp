// What graphs keep and give back: depth, memory, and recomputation instead of memory.
#include "needle/ops/ops.h"
#include "tests/agree.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

class AutogradMemory : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(, AutogradMemory, testing::ValuesIn(all_devices()), device_name);

// --- depth and memory ----------------------------------------------------------------------------------

TEST_P(AutogradMemory, AMillionNodesRunBackwardAndAreDestroyed) {
  const Tensor x = leaf({1});
  for (const bool walked : {true, false}) {
    Tensor y = x;
    for (int i = 0; i < many(1000000); ++i) y = -y;
    if (walked) y.backward();
  }
  EXPECT_EQ(x.grad().item(), 1);
}

TEST_P(AutogradMemory, DeepGraphsOfSeveralInputsAreDestroyedInALoop) {
  Tensor y = leaf({1}), z = leaf({1});
  for (int i = 0; i < many(100000); ++i) {
    const Tensor next = y + z;
    z = y;
    y = next * 0.5;
  }
  y = z = Tensor();
}

TEST_P(AutogradMemory, MemoryIsBackToParametersAndGradientsAfterAStep) {
  const Tensor weight(normal({8, 8}, 1), true), bias(normal({8}, 2), true), gain(normal({8}, 3), true);
  const std::size_t before = device()->memory_stats().live, parameters = (64 + 8 + 8) * size_of(exact());
  for (int step = 0; step < 3; ++step) {
    const Tensor x(normal({2, 4, 8}, 4));
    Generator random(1);
    const Tensor h = dropout(gelu(layer_norm(linear(x, weight, bias), gain)), 0.1, random);
    const Tensor heads = permute(reshape(h, {2, 4, 2, 4}), {0, 2, 1, 3});
    const Tensor y = attention(heads, heads, heads, {.causal = true});
    cross_entropy(matmul_transposed(reshape(permute(y, {0, 2, 1, 3}), {8, 8}), weight),
                  ids({1, 2, 3, 4, 5, 6, 7, 0}, {8}))
        .backward();
  }
  EXPECT_EQ(device()->memory_stats().live, before + parameters);
}

TEST_P(AutogradMemory, WhatNoGradientReadsIsFreedAtOnce) {
  const std::size_t before = device()->memory_stats().live;
  const Tensor x(NDArray::ones({1000}, exact(), device()), true);
  Tensor y = x;
  for (int i = 0; i < 10; ++i) y = y + 1.0;
  EXPECT_EQ(device()->memory_stats().live, before + 2 * 1000 * size_of(exact()));  // x and the last y
}

TEST_P(AutogradMemory, ForwardPassesThatAreDroppedLeaveNothing) {
  const Tensor x(normal({16, 16}, 1), true);
  const std::size_t before = device()->memory_stats().live;
  for (int i = 0; i < 100; ++i) sum(softmax(matmul(x, x)));
  EXPECT_EQ(device()->memory_stats().live, before);
}

// --- checkpoint ----------------------------------------------------------------------------------------

TEST_P(AutogradMemory, CheckpointEqualsThePlainFunction) {
  const Tensor w1(normal({4, 6}, 1), true), w2(normal({6, 4}, 2), true), x(normal({3, 4}, 3), true);
  Generator random(9);
  const auto block = [&](const Tensors& in) {
    return Tensors{in[0] + matmul(dropout(gelu(matmul(in[0], w1)), 0.5, random), w2), in[0] * 2.0};
  };
  const auto run = [&](bool checkpointed) {
    random = Generator(9);
    for (Tensor t : {w1, w2, x}) t.clear_grad();
    Tensor y = x;
    for (int layer = 0; layer < 3; ++layer) {
      const Tensors out = checkpointed ? checkpoint(block, {y}, &random) : block({y});
      y = out[0] + out[1];
    }
    sum(y * y).backward();
    return std::pair(y.array(), NDArrays{w1.grad(), w2.grad(), x.grad()});
  };
  const auto [plain, plain_gradients] = run(false);
  const std::uint64_t position = random.position();
  const auto [ours, our_gradients] = run(true);
  EXPECT_EQ(random.position(), position);
  EXPECT_TRUE(same(ours, plain));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(agrees(our_gradients[i], plain_gradients[i])) << i;
}

TEST_P(AutogradMemory, CheckpointKeepsOnlyItsInputs) {
  const Tensor x(NDArray::ones({1000}, exact(), device()), true);
  const auto chain = [](const Tensors& in) {
    Tensor y = in[0];
    for (int i = 0; i < 20; ++i) y = exp(y) * 0.1;
    return Tensors{y};
  };
  const std::size_t before = device()->memory_stats().live;
  const Tensor y = checkpoint(chain, {x})[0];
  EXPECT_EQ(device()->memory_stats().live, before + 1000 * size_of(exact()));
}

TEST_P(AutogradMemory, CheckpointWhoseInputsNeedNoGradient) {
  const Tensor w = leaf({2}), x(array({3}));
  checkpoint([&](const Tensors& in) { return Tensors{in[0] * w * w}; }, {x})[0].backward();
  EXPECT_EQ(w.grad().item(), 12);
  const NoGrad off;
  EXPECT_FALSE(checkpoint([&](const Tensors& in) { return Tensors{in[0] * w}; }, {x})[0].requires_grad());
}

}  // namespace
}  // namespace needle
