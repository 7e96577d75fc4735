// The parts that models are made of: attention, blocks, feed-forward layers, norms.
#include <gtest/gtest.h>

#include <cmath>

#include "needle/nn/attention.h"
#include "needle/optim/optimizer.h"
#include "tests/agree.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

class ModulesTest : public OnDevice {};

TEST_P(ModulesTest, S11_AttentionAloneOnlyPermutes) {
  Generator random(1);
  BlockConfig block;
  block.width = 6;
  block.heads = block.key_value_heads = 2;
  block.causal = false;
  MultiHeadAttention attention(block, {random, device(), exact(), Initialisation::uniform});
  const NDArray x = normal({1, 4, 6}, 2);
  const std::vector<std::int64_t> order{2, 0, 3, 1};
  const auto permuted = [&](const NDArray& rows) {
    return gather_rows(Tensor(rows[0]), ids(order, {4})).array().unsqueeze(0);
  };
  const auto attend = [&](const NDArray& rows) { return attention.forward(Tensor(rows), {}, {}, 0).array(); };
  EXPECT_TRUE(agrees(attend(permuted(x)), permuted(attend(x))));
  const NDArray places = sinusoidal_table(4, 6, exact(), device());
  const auto placed = [&](const NDArray& rows) { return binary(Add{}, rows, places); };
  EXPECT_FALSE(agrees(attend(placed(permuted(x))), permuted(attend(placed(x)))));
}

/// Two layers that are one block, or two.
struct TwoBlocks : Module {
  TwoBlocks(const BlockConfig& block, const Init& init, bool share) : first(block, init) {
    if (!share) second.emplace(block, init);
  }
  Block first;
  std::optional<Block> second;
  Block& other() { return second ? *second : first; }
  Tensor forward(const Tensor& x) { return other().forward(first.forward(x, {}, {}, 0), {}, {}, 1); }
  void list(Parts& parts) override {
    parts("first", first);
    parts("second", other());
  }
};

TEST_P(ModulesTest, S24_BlocksAreIndependentUnlessOneIsUsedTwice) {
  BlockConfig block;
  block.width = 6;
  block.heads = block.key_value_heads = 2;
  block.ffn = 10;
  const auto build = [&](bool share) {
    Generator random(1);
    return TwoBlocks(block, {random, device(), exact(), Initialisation::uniform}, share);
  };
  TwoBlocks shared = build(true), own = build(false);
  EXPECT_EQ(own.parameter_count(), 2 * shared.parameter_count());
  EXPECT_EQ(own.parameters().size(), 2 * shared.parameters().size());
  for (const Parameter& parameter : shared.parameters()) {
    EXPECT_TRUE(parameter.name.starts_with("first."));
    EXPECT_EQ(parameter.aliases, std::vector<std::string>{"second" + parameter.name.substr(5)});
  }
  // Two blocks with the numbers of the shared one: its gradient is the sum of both of theirs.
  for (Parameter& parameter : own.parameters()) {
    for (const Parameter& source : shared.parameters()) {
      if (source.name == parameter.name || source.aliases[0] == parameter.name)
        parameter.tensor.set_array(source.tensor.array().copy());
    }
  }
  const Tensor x(normal({1, 3, 6}, 2));
  EXPECT_TRUE(agrees(shared.forward(x).array(), own.forward(x).array()));
  for (TwoBlocks* blocks : {&shared, &own}) {
    const Tensor y = blocks->forward(x);
    sum(y * y * y).backward();
  }
  const std::vector<Parameter> ours = shared.parameters(), theirs = own.parameters();
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const NDArray both = binary(Add{}, theirs[i].tensor.grad(), theirs[i + ours.size()].tensor.grad());
    EXPECT_TRUE(agrees(ours[i].tensor.grad(), both, within(1e-9), 1)) << ours[i].name;
  }
  // One step moves it once.
  const NDArray before = ours[0].tensor.array().copy();
  Sgd optimizer(groups_by_rank(ours, 0));
  optimizer.step(0.1);
  const NDArray step = binary(Multiply{}, ours[0].tensor.grad(), NDArray::scalar(0.1, exact(), device()));
  EXPECT_TRUE(agrees(ours[0].tensor.array(), binary(Subtract{}, before, step)));
}

TEST_P(ModulesTest, S25_FeedForwardAndNormActOnEachPositionAlone) {
  Generator random(1);
  const Init init{random, device(), exact(), Initialisation::uniform};
  const Tensor x(normal({2, 3, 6}, 2));
  for (const Activation activation :
       {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::gated}) {
    FeedForward ffn(6, 10, activation, true, init);
    const NDArray together = ffn.forward(x).array();
    for (std::int64_t row = 0; row < 2; ++row) {
      for (std::int64_t t = 0; t < 3; ++t)
        EXPECT_TRUE(agrees(together[row][t], ffn.forward(Tensor(x.array()[row][t].copy())).array()));
    }
    // Expansion, activation, contraction.
    const auto map = [](const Linear& linear, const Tensor& y) {
      return matmul(y, linear.weight) + linear.bias;
    };
    const Tensor up = map(ffn.up, x);
    const Tensor inner = activation == Activation::relu        ? maximum(up, constant_like(up, 0))
                         : activation == Activation::gelu      ? up * 0.5 * (erf(up / std::sqrt(2.0)) + 1.0)
                         : activation == Activation::gelu_tanh ? gelu(up, GeluForm::tanh)
                                                               : silu(map(*ffn.gate, x)) * up;
    EXPECT_TRUE(agrees(together, map(ffn.down, inner).array()));
  }
  LayerNorm norm(6, init);
  const NDArray normed = norm.forward(x).array();
  EXPECT_TRUE(agrees(normed[1][2], norm.forward(Tensor(x.array()[1][2].copy())).array()));
  EXPECT_NEAR(reduce(Sum{}, normed[1][2]).item(), 0, within(1e-12));
}

TEST_P(ModulesTest, S20_PostNormBlockWithOneHead) {
  Generator random(1);
  BlockConfig block;
  block.width = 6;
  block.heads = block.key_value_heads = 1;
  block.ffn = 10;
  block.activation = Activation::relu;
  block.order = NormOrder::post;
  const Block ours(block, {random, device(), exact(), Initialisation::uniform});
  const Tensor x(normal({1, 4, 6}, 2));
  const Tensors parts = split(linear(x, ours.attention.qkv.weight, ours.attention.qkv.bias), {6, 6, 6}, -1);
  Tensors heads;
  for (const Tensor& part : parts) heads.push_back(unsqueeze(part, 1));
  AttentionOptions causal;
  causal.causal = true;
  const Tensor o = squeeze(attention_definition(heads[0], heads[1], heads[2], causal, {}), 1);
  const Tensor u = ours.norm1.forward(x + linear(o, ours.attention.out.weight, ours.attention.out.bias));
  const Tensor inner = relu(linear(u, ours.ffn.up.weight, ours.ffn.up.bias));
  const Tensor y = ours.norm2.forward(u + linear(inner, ours.ffn.down.weight, ours.ffn.down.bias));
  EXPECT_TRUE(agrees(ours.forward(x, {}, {}, 0).array(), y.array()));
}

INSTANTIATE_TEST_SUITE_P(All, ModulesTest, testing::ValuesIn(all_devices()), device_name);

}  // namespace
}  // namespace needle
