// The engine: what is recorded, how the walk back adds up, what it frees, and which misuse it refuses.
#include "needle/autograd.h"

#include "needle/observer.h"
#include "needle/ops/ops.h"
#include "tests/agree.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

class Autograd : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(, Autograd, testing::ValuesIn(all_devices()), device_name);

// --- starting a walk -----------------------------------------------------------------------------------

TEST_P(Autograd, SecondWalkOverAFreedGraphIsAnError) {
  const Tensor x = leaf({1, 2}), y = sum(exp(x) * x);
  y.backward();
  EXPECT_TRUE(contains(error_of([&] { y.backward(); }), {"freed", "retain_graph"}));
  // A value inside the freed graph is no leaf either.
  const Tensor z = exp(x), top = sum(z * z);
  top.backward();
  EXPECT_TRUE(contains(error_of([&] { sum(z).backward(); }), {"freed"}));
}

TEST_P(Autograd, RetainedGraphIsWalkedAgain) {
  const Tensor x = leaf({1, 2}), y = sum(x * x);
  y.backward({}, true);
  EXPECT_TRUE(same(x.grad(), array({2, 4})));
  y.backward({}, true);
  EXPECT_TRUE(same(x.grad(), array({4, 8})));
  y.backward();
  EXPECT_TRUE(same(x.grad(), array({6, 12})));
  EXPECT_TRUE(contains(error_of([&] { y.backward(); }), {"freed"}));
}

TEST_P(Autograd, GradientsKeepTheGraph) {
  const Tensor x = leaf({3}), y = x * x * x;
  for (int walk = 0; walk < 2; ++walk) EXPECT_EQ(gradients(sum(y), {x})[0].item(), 27);
  EXPECT_FALSE(x.grad().defined());
  sum(y).backward();
  EXPECT_EQ(x.grad().item(), 27);
}

TEST_P(Autograd, StartOfSeveralElementsNeedsASeed) {
  const Tensor x = leaf({1, 2, 3}), y = x * 2.0;
  EXPECT_TRUE(contains(error_of([&] { y.backward(); }), {"[3]", "seed"}));
  EXPECT_TRUE(contains(error_of([&] { gradients(y, {x}); }), {"[3]", "seed"}));
  EXPECT_TRUE(contains(error_of([&] { y.backward(array({1, 2})); }), {"[2]", "[3]"}));
  EXPECT_TRUE(contains(error_of([&] {
                         y.backward(array({1, 2, 3}, {3}, DType::bf16));
                       }),
                       {"bf16", std::string(name_of(exact()))}));
  y.backward(array({1, 10, 100}));
  EXPECT_TRUE(same(x.grad(), array({2, 20, 200})));
}

TEST_P(Autograd, StartWithoutAnyGradientIsAnError) {
  const Tensor x(array({1}));
  EXPECT_TRUE(contains(error_of([&] { (x * x).backward(); }), {"requires a gradient"}));
  EXPECT_TRUE(contains(error_of([&] { Tensor(ids({1}, {1}), true); }), {"i64"}));
  EXPECT_TRUE(contains(error_of([&] { (leaf({1}) * 2.0).set_requires_grad(false); }), {"leaf"}));
}

TEST_P(Autograd, LeafIsItsOwnStart) {
  const Tensor x = leaf({5});
  x.backward();
  x.backward(array({2}));
  EXPECT_EQ(x.grad().item(), 3);
}

// --- what is recorded ----------------------------------------------------------------------------------

TEST_P(Autograd, NoGradRecordsNothingInItsScope) {
  const Tensor x = leaf({2});
  {
    const NoGrad off;
    EXPECT_FALSE(grad_enabled());
    EXPECT_FALSE((x * x).requires_grad());
    {
      const GradMode on(true);
      EXPECT_TRUE((x * x).requires_grad());
    }
    EXPECT_FALSE(grad_enabled());
  }
  EXPECT_TRUE((x * x).requires_grad());
}

TEST_P(Autograd, DetachedValueIsAConstant) {
  const Tensor x = leaf({3}), y = x * x.detach();
  y.backward();
  EXPECT_EQ(x.grad().item(), 3);
}

TEST_P(Autograd, ConstantsGetNoGradientAndComparisonsRecordNothing) {
  const Tensor x = leaf({3}), constant(array({4}));
  sum(x * constant).backward();
  EXPECT_FALSE(constant.grad().defined());
  EXPECT_FALSE(greater(x, constant).requires_grad());
  EXPECT_EQ(greater(x, constant).dtype(), DType::boolean);
}

TEST_P(Autograd, BackwardUnderNoGradStillWorks) {
  const Tensor x = leaf({3}), y = x * x;
  const NoGrad off;
  y.backward();
  EXPECT_EQ(x.grad().item(), 6);
}

TEST_P(Autograd, LeafThatIsFrozenLaterGetsNothing) {
  Tensor x = leaf({3}), frozen = leaf({4});
  frozen.set_requires_grad(false);
  (x * frozen).backward();
  EXPECT_EQ(x.grad().item(), 4);
  EXPECT_FALSE(frozen.grad().defined());
}

// --- overwritten values --------------------------------------------------------------------------------

TEST_P(Autograd, OverwrittenValueIsAnError) {
  Tensor x = leaf({1, 2});
  const Tensor y = sum(x * x);
  NDArray alias = x.array();
  alias.assign(array({7}));
  EXPECT_TRUE(contains(error_of([&] { y.backward(); }), {"multiply", "input", "[2]", "overwritten"}));

  const Tensor z = sum(exp(x));
  alias.mutable_view();  // as an optimizer writes; exp reads its output alone
  EXPECT_NO_THROW(z.backward());

  const Tensor w = exp(x);
  NDArray result = w.array();
  device()->fill(0, result.mutable_view());
  EXPECT_TRUE(contains(error_of([&] { sum(w).backward(); }), {"exp", "output 0", "overwritten"}));
}

TEST_P(Autograd, OverwrittenViewIsNoticedAsWell) {
  const Tensor x = leaf({1, 2, 3, 4}), y = sum(x * x);
  NDArray half = x.array().slice(0, 0, 2);
  half.assign(array({0}));
  EXPECT_TRUE(contains(error_of([&] { gradients(y, {x}, {}, true); }), {"overwritten"}));
  EXPECT_TRUE(contains(error_of([&] { y.backward(); }), {"overwritten"}));
}

TEST_P(Autograd, OverwritingWhatNoGradientReadsIsFine) {
  const Tensor x = leaf({1, 2}), y = sum(x + 1.0);
  NDArray alias = x.array();
  alias.assign(array({5}));
  y.backward();
  EXPECT_TRUE(same(x.grad(), array({1, 1})));
}

// --- adding up -----------------------------------------------------------------------------------------

TEST_P(Autograd, GradientsAddUpOverTwoBackwards) {
  const Tensor x = leaf({1, 2});
  sum(x * 3.0).backward();
  sum(x * x).backward();
  EXPECT_TRUE(same(x.grad(), array({5, 7})));
  Tensor(x).clear_grad();
  EXPECT_FALSE(x.grad().defined());
}

TEST_P(Autograd, GradientInALeafHasStorageOfItsOwn) {
  const Tensor a = leaf({1, 2}), b = leaf({3, 4});
  sum(a + b).backward();  // both receive the same broadcast view
  a.body()->grad.assign(array({9}));
  EXPECT_TRUE(same(b.grad(), array({1, 1})));
  EXPECT_TRUE(a.grad().is_compact());
  const NDArray seed = array({1, 2});
  const Tensor c = leaf({0, 0});
  (c + 1.0).backward(seed);
  c.body()->grad.assign(array({9}));
  EXPECT_TRUE(same(seed, array({1, 2})));
}

TEST_P(Autograd, IncomingGradientThatIsSharedIsNotAddedTo) {
  const Tensor a = leaf({1, 2}), b = leaf({3, 4});
  const Tensor total = a + b;
  // The seed reaches a and b; a receives more, b must not see it.
  sum(total + a * 10.0).backward();
  EXPECT_TRUE(same(a.grad(), array({11, 11})));
  EXPECT_TRUE(same(b.grad(), array({1, 1})));
}

TEST_P(Autograd, OneTensorInAllSlots) {
  const Tensor x(normal({2, 2, 3, 4}, 1), true);
  const Tensor q(x.array(), true), k(x.array(), true), v(x.array(), true);
  const NDArray seed = normal({2, 2, 3, 4}, 2);
  attention(x, x, x, {.causal = true}).backward(seed);
  attention(q, k, v, {.causal = true}).backward(seed);
  const NDArray together = binary(Add{}, binary(Add{}, q.grad(), k.grad()), v.grad());
  EXPECT_TRUE(agrees(x.grad(), together));
  const Tensor y = attention(x, x, x, {.causal = true});
  EXPECT_TRUE(agrees(gradients(y, {x}, Tensor(seed), true)[0].array(), together));
}

TEST_P(Autograd, ChainOfFusedOpsOfOneTensorCostsInProportionToItsLength) {
  // Were the walk through a definition not stopped at its inputs, this would take 3^40 steps.
  const Tensor x(normal({1, 1, 2, 2}, 3), true);
  Tensor y = x;
  for (int i = 0; i < 40; ++i) y = attention(y, y, y);
  const Tensors first = gradients(sum(y * y), {x}, {}, true);
  sum(y * y).backward();
  EXPECT_TRUE(agrees(first[0].array(), x.grad(), within(1e-9), 1));
}

TEST_P(Autograd, LongChainOfFusedOpsIsWalkedOnce) {
  // Did each definition's walk go on beyond its inputs, this would visit some 10^8 nodes.
  const Tensor x = leaf({1, 2});
  Tensor y = x;
  for (int i = 0; i < many(10000); ++i) y = softmax(y);
  EXPECT_TRUE(
      agrees(gradients(y, {x}, Tensor(array({1, 2})), true)[0].array(), array({0, 0}), within(1e-9), 2));
}

TEST_P(Autograd, SplitWhoseOutputsAreNotAllUsed) {
  const Tensor x = leaf({1, 2, 3, 4, 5, 6});
  const Tensors parts = split(x, {2, 1, 3}, 0);
  sum(parts[2] * parts[2]).backward();
  EXPECT_TRUE(same(x.grad(), array({0, 0, 0, 8, 10, 12})));
  const Tensors again = split(x, {2, 1, 3}, 0);
  const Tensor g = gradients(sum(again[0]) + sum(again[2] * again[2]), {x}, {}, true)[0];
  EXPECT_TRUE(same(g.array(), array({1, 1, 0, 8, 10, 12})));
}

// --- gradients() ---------------------------------------------------------------------------------------

TEST_P(Autograd, ThirdDerivativeOfAPolynomial) {
  const Tensor x = leaf({2});
  Tensor y = power(x, 4) - 3.0 * power(x, 2) + x * 7.0;
  const double wanted[] = {4 * 8 - 6 * 2 + 7, 12 * 4 - 6, 24 * 2, 24, 0};
  for (const double value : wanted) {
    y = gradients(y, {x}, {}, true)[0];
    EXPECT_DOUBLE_EQ(y.item(), value);
  }
}

TEST_P(Autograd, GradientsOfWhatIsIndependentAreZeros) {
  const Tensor x = leaf({1, 2}), other = leaf({1, 2, 3}, {3}, DType::f32);
  const Tensors g = gradients(sum(x * x), {x, other});
  EXPECT_TRUE(same(g[1].array(), NDArray::zeros({3}, DType::f32, device())));
  EXPECT_EQ(g[1].dtype(), DType::f32);
}

TEST_P(Autograd, GradientsStopAtInnerValuesAndSumSeveralStarts) {
  const Tensor x = leaf({2}), middle = x * x, y = middle * 3.0 + x;
  const Tensors g = gradients(y, {middle, x});
  EXPECT_EQ(g[0].item(), 3);
  EXPECT_EQ(g[1].item(), 13);
  const Tensors both = gradients({y, middle}, {x}, {Tensor(array({1})), Tensor(array({10}))});
  EXPECT_EQ(both[0].item(), 13 + 40);
  EXPECT_EQ(gradients(x, {x})[0].item(), 1);
  EXPECT_TRUE(contains(error_of([&] { gradients({y, middle}, {x}, {Tensor(array({1}))}); }), {"2", "1"}));
}

TEST_P(Autograd, GradientOfAGradientPenalty) {
  const Tensor x = leaf({1, 2}), w = leaf({3, 4});
  const Tensor slope = gradients(sum(tanh(x * w)), {x}, {}, true)[0];
  sum(slope * slope).backward();
  EXPECT_TRUE(w.grad().defined());
  const Tensors again = gradients(sum(slope.detach()), {w});
  EXPECT_TRUE(same(again[0].array(), array({0, 0})));
}

// --- observers -----------------------------------------------------------------------------------------

struct Recorder final : Observer {
  void after(const OpEvent& event) override {
    events.push_back(std::string(event.op) + (event.phase == Phase::forward ? " forward " : " backward ") +
                     event.path);
    outputs += event.outputs.size();
  }
  std::vector<std::string> events;
  std::size_t outputs = 0;
};

TEST_P(Autograd, ObserverIsToldOfEveryOpInItsScope) {
  const Tensor x(normal({2, 3}, 1), true);
  Recorder recorder;
  const std::string block = "blocks.0", ffn = "blocks.0.ffn";
  {
    const ObserverScope scope(&recorder);
    const PathScope outer(block);
    const Tensor y = softmax(x);
    {
      const PathScope inner(ffn);
      sum(exp(y)).backward();
    }
  }
  exp(x);
  EXPECT_EQ(recorder.events,
            (std::vector<std::string>{"softmax forward blocks.0", "exp forward blocks.0.ffn",
                                      "sum forward blocks.0.ffn", "sum backward blocks.0.ffn",
                                      "exp backward blocks.0.ffn", "softmax backward blocks.0"}));
  EXPECT_EQ(recorder.outputs, 6u);
  EXPECT_EQ(current_observer(), nullptr);
}

TEST_P(Autograd, ALeafThatWasReplacedIsAnError) {
  const Tensor w = leaf({0.3});
  const Tensor y = sum(w * w);
  Tensor(w).set_array(array({5}));
  EXPECT_TRUE(contains(error_of([&] { y.backward(); }), {"multiply", "replaced"}));
  EXPECT_TRUE(contains(error_of([&] { Tensor(w).set_array(array({1, 2})); }), {"[1]", "[2]"}));
}

TEST_P(Autograd, ALeafThatIsTrainedHasElementsOfItsOwn) {
  EXPECT_TRUE(Tensor(normal({2, 3}, 1).transpose(), true).array().is_compact());
  EXPECT_TRUE(Tensor(array({1}).broadcast_to({4}), true).array().is_compact());
}

TEST_P(Autograd, GradientsNeedNothingBehindTheirTargets) {
  const Tensor w = leaf({0.4, -0.2});
  const Tensor h = tanh(w);
  sum(h).backward();  // frees what lies behind h
  EXPECT_TRUE(agrees(gradients(sum(h * h), {h})[0].array(), binary(Add{}, h.array(), h.array())));
}

TEST_P(Autograd, AGradientOfAConstantIsAnError) {
  const Tensor x(array({1, 2})), w = leaf({3, 4});
  EXPECT_TRUE(contains(error_of([&] { gradients(sum(x * w), {w, x}); }), {"x 1", "[2]", "require"}));
}

/// Forgets its gradient.
struct ForgetfulOp final : Op {
  const char* name() const override { return "forgetful"; }
  NDArrays compute(const NDArrays& x) override { return {x[0].copy()}; }
  Tensors gradient(const Tensors&, const Saved&, const Needs&) override { return {Tensor()}; }
};

TEST_P(Autograd, AGradientThatAnOpForgetsIsAnError) {
  const Tensor y = sum(apply_op<ForgetfulOp>({leaf({1, 2})}));
  EXPECT_TRUE(contains(error_of([&] { y.backward(); }), {"forgetful", "input 0", "missing"}));
}

}  // namespace
}  // namespace needle
