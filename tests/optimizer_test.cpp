// Optimizers, parameter groups, clipping and the schedule of the learning rate.
#include "needle/optim/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "needle/nn/layers.h"
#include "needle/optim/schedule.h"
#include "needle/threads.h"
#include "tests/agree.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

class OptimizerTest : public OnDevice {
 protected:
  Parameter parameter(const std::string& name, const std::vector<double>& values, const Shape& shape) const {
    return {name, leaf(values, shape), true, {}};
  }
};

void set_gradient(const Parameter& parameter, const NDArray& gradient) {
  Tensor(parameter.tensor).mutable_grad() = gradient;
}

TEST_P(OptimizerTest, BR048_AdamWCorrectsItsBiasAndDecaysByTheRate) {
  const Parameter p = parameter("p", {1}, {1});
  Adam optimizer({{{p}, 0.01}}, AdamDecay::decoupled);
  const std::vector<double> gradients{0.1, -0.2, 0.3},
      right{0.9989900001, 0.9993461137038839, 0.9989928791783396};
  for (std::size_t step = 0; step < 3; ++step) {
    set_gradient(p, array({gradients[step]}));
    optimizer.step(1e-3);
    EXPECT_NEAR(p.tensor.item(), right[step], within(1e-12));
  }
}

TEST_P(OptimizerTest, BR049_OnlyTensorsOfTwoOrMoreAxesDecay) {
  const std::vector<Parameter> all{parameter("W", {1}, {1, 1}), parameter("bias", {1}, {1}),
                                   parameter("norm.gain", {1}, {1}), parameter("embedding", {1}, {1, 1})};
  const std::vector<ParameterGroup> groups = groups_by_rank(all, 0.5);
  ASSERT_EQ(groups.size(), 2);
  EXPECT_EQ(groups[0].weight_decay, 0.5);
  EXPECT_EQ(groups[1].weight_decay, 0);
  EXPECT_EQ(groups[0].parameters.size(), 2);
  EXPECT_EQ(groups[1].parameters.size(), 2);
  Adam optimizer(groups, AdamDecay::decoupled);
  for (const Parameter& p : all) set_gradient(p, NDArray::zeros(p.tensor.shape(), exact(), device()));
  optimizer.step(0.1);
  EXPECT_NEAR(all[0].tensor.item(), 0.95, within(1e-15));
  EXPECT_EQ(all[1].tensor.item(), 1);
  EXPECT_EQ(all[2].tensor.item(), 1);
  EXPECT_NEAR(all[3].tensor.item(), 0.95, within(1e-15));
}

/// A table that is embedding and head at once, listed under both names.
struct TiedTable : Module {
  explicit TiedTable(NDArray array) : table(std::move(array), true) {}
  Tensor table;
  void list(Parts& parts) override {
    parts("embedding", table);
    parts("head", table);
  }
};

TEST_P(OptimizerTest, BR050_ATiedTableIsCountedAndSteppedOnce) {
  TiedTable module(array({.1, .2, .3, -.1, -.2, .4}, {3, 2}));
  const std::vector<Parameter> parameters = module.parameters();
  ASSERT_EQ(parameters.size(), 1);
  EXPECT_EQ(parameters[0].name, "embedding");
  EXPECT_EQ(parameters[0].aliases, std::vector<std::string>{"head"});
  EXPECT_EQ(module.parameter_count(), 6);
  const Tensor logits = matmul_transposed(gather_rows(module.table, ids({0}, {1})), module.table);
  const Tensor loss = cross_entropy(logits, ids({1}, {1}));
  EXPECT_NEAR(loss.item(), 1.1288446085662296, within(1e-12));
  loss.backward();
  EXPECT_TRUE(
      agrees(module.table.grad(), array({-0.20365457706703322, 0.3382966490120503, -0.06765932980241006,
                                         -0.13531865960482012, 0.033998811816155786, 0.06799762363231157},
                                        {3, 2})));
  Sgd optimizer(groups_by_rank(parameters, 0));
  optimizer.step(0.1);
  EXPECT_TRUE(
      agrees(module.table.array(), array({0.12036545770670333, 0.16617033509879497, 0.306765932980241,
                                          -0.08646813403951799, -0.2033998811816156, 0.39320023763676887},
                                         {3, 2})));
}

TEST_P(OptimizerTest, BR052_AnOptimizerGoesOnFromItsStateAndStepCount) {
  const auto run = [&](const Parameter& p, Adam& optimizer, int steps) {
    for (int step = 0; step < steps; ++step) {
      set_gradient(p, array({p.tensor.item() - 3}));  // of (p - 3)^2 / 2
      optimizer.step(1);
    }
    return p.tensor.item();
  };
  const Parameter p = parameter("p", {0}, {1});
  Adam first({{{p}, 0}}, AdamDecay::coupled);
  const double p3 = run(p, first, 3);
  EXPECT_NEAR(p3, 2.867110327769284, within(1e-9));

  const auto resumed = [&](bool with_state, bool with_steps) {
    const Parameter q = parameter("p", {p3}, {1});
    Adam second({{{q}, 0}}, AdamDecay::coupled);
    const std::vector<Parameter> saved = first.state();
    std::vector<Parameter> fresh = second.state();
    for (std::size_t i = 0; with_state && i < saved.size(); ++i) {
      EXPECT_EQ(saved[i].name, fresh[i].name);
      fresh[i].tensor.set_array(saved[i].tensor.array().copy());
    }
    if (with_steps) second.set_steps(first.steps());
    return run(q, second, 3);
  };
  const double lost = resumed(false, false), lost_count = resumed(true, false), whole = resumed(true, true);
  EXPECT_NEAR(lost, 2.5952169994411385, within(1e-9));
  EXPECT_NEAR(lost_count, 4.941358075485246, within(1e-9));
  EXPECT_NEAR(whole, 4.4539124459191, within(1e-9));
  EXPECT_EQ(run(p, first, 3), whole);
}

TEST_P(OptimizerTest, AParameterWithoutGradientStaysAsItIs) {
  const Parameter moved = parameter("moved", {1}, {1, 1}), left = parameter("left", {1}, {1, 1});
  Adam optimizer({{{moved, left}, 0.5}}, AdamDecay::decoupled);
  set_gradient(moved, array({1}, {1, 1}));
  optimizer.step(0.1);
  EXPECT_NE(moved.tensor.item(), 1);
  EXPECT_EQ(left.tensor.item(), 1);
  optimizer.clear_gradients();
  EXPECT_FALSE(moved.tensor.grad().defined());
}

// Arrays that are cut into pieces for several threads, others that are not, an empty one, and two types.
TEST_P(OptimizerTest, AllParametersStepAsEachAlone) {
  const int before = threads();
  set_threads(3);
  const auto step = [&](const std::vector<std::size_t>& chosen) {
    const std::vector<Shape> shapes{{300, 200}, {5}, {0, 4}, {40000}, {7, 7}};
    std::vector<Parameter> parameters;
    std::vector<NDArray> gradients;
    for (const std::size_t i : chosen) {
      const DType dtype = i == 4 ? exact() : DType::f32;
      Parameter& parameter =
          parameters.emplace_back("p" + std::to_string(i), Tensor(normal(shapes[i], i, dtype), true), false,
                                  std::vector<std::string>{});
      parameter.tensor.mutable_grad() = normal(shapes[i], 10 + i, dtype);
      gradients.push_back(parameter.tensor.grad());
    }
    Adam optimizer(groups_by_rank(parameters, 0.1), AdamDecay::decoupled);
    for (int n = 0; n < 3; ++n) optimizer.step(1e-2, 0.5);
    NDArrays result;
    for (const Parameter& parameter : parameters) result.push_back(parameter.tensor.array());
    return result;
  };
  const NDArrays together = step({0, 1, 2, 3, 4});
  for (std::size_t i = 0; i < together.size(); ++i) EXPECT_TRUE(same(together[i], step({i})[0])) << i;
  set_threads(before);
}

TEST_P(OptimizerTest, AParameterThatIsThereTwiceIsRefused) {
  const Parameter parameter{"twice", leaf({1, 2}), false, {}};
  EXPECT_TRUE(contains(error_of([&] {
                         Adam({{{parameter}, 0}, {{parameter}, 0.1}}, AdamDecay::decoupled);
                       }),
                       {"twice"}));
}

TEST_P(OptimizerTest, FrozenParametersAreInNoGroup) {
  std::vector<Parameter> all{parameter("frozen", {1}, {1, 1}), parameter("trained", {1}, {1, 1})};
  all[0].tensor.set_requires_grad(false);
  const std::vector<ParameterGroup> groups = groups_by_rank(all, 0.1);
  ASSERT_EQ(groups[0].parameters.size(), 1);
  EXPECT_EQ(groups[0].parameters[0].name, "trained");
}

TEST_P(OptimizerTest, GradientsAreClippedByTheNormOfAllOfThem) {
  const std::vector<Parameter> all{parameter("a", {0, 0}, {2}), parameter("b", {0}, {1, 1}),
                                   parameter("without", {0}, {1})};
  EXPECT_EQ(gradient_norm(all, 1).norm, 0);
  set_gradient(all[0], array({2, -6}));
  set_gradient(all[1], array({3}, {1, 1}));
  const GradientNorm clipped = gradient_norm(all, 3.5), below = gradient_norm(all, 8),
                     off = gradient_norm(all, 0);
  EXPECT_NEAR(clipped.norm, 7, within(1e-12));
  EXPECT_NEAR(clipped.scale, 0.5, within(1e-12));
  EXPECT_EQ(below.scale, 1);
  EXPECT_EQ(off.scale, 1);
  Sgd optimizer(groups_by_rank(all, 0));
  optimizer.step(1, clipped.scale);
  EXPECT_TRUE(agrees(all[0].tensor.array(), array({-1, 3})));
}

TEST_P(OptimizerTest, ANormThatIsNotFiniteNamesItsParameter) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const std::vector<Parameter> all{parameter("fine", {0}, {1}), parameter("bad", {0, 0}, {2})};
    set_gradient(all[0], array({1}));
    set_gradient(all[1], array({1, bad}));
    const GradientNorm norm = gradient_norm(all, 1);
    EXPECT_FALSE(norm.finite);
    EXPECT_EQ(norm.first_bad, "bad");
  }
}

TEST_P(OptimizerTest, ImpossibleSettingsAreErrors) {
  const std::vector<ParameterGroup> none;
  EXPECT_TRUE(contains(error_of([&] { Sgd(none, 1); }), {"sgd", "momentum", "1"}));
  EXPECT_TRUE(contains(error_of([&] { Sgd(none, 0, true); }), {"Nesterov"}));
  EXPECT_TRUE(contains(error_of([&] { Adam(none, AdamDecay::coupled, 1.0); }), {"betas"}));
  EXPECT_TRUE(contains(error_of([&] { Adam(none, AdamDecay::coupled, .9, .99, 0); }), {"epsilon"}));
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerTest, testing::ValuesIn(all_devices()), device_name);

TEST(Schedule, WarmsUpAndFalls) {
  for (const Decay decay : {Decay::cosine, Decay::linear, Decay::none}) {
    const Schedule schedule{1.0, 0.1, 10, 110, decay};
    for (std::int64_t step = 1; step < 10; ++step) EXPECT_GT(schedule.rate(step), schedule.rate(step - 1));
    EXPECT_GT(schedule.rate(0), 0);
    EXPECT_EQ(schedule.rate(10), 1.0);
    const double middle = decay == Decay::none ? 1.0 : 0.55;
    EXPECT_NEAR(schedule.rate(60), middle, 1e-12);
    EXPECT_NEAR(schedule.rate(110), decay == Decay::none ? 1.0 : 0.1, 1e-12);
    EXPECT_NEAR(schedule.rate(1000), decay == Decay::none ? 1.0 : 0.1, 1e-12);
  }
  EXPECT_EQ((Schedule{1.0, 0.1, 0, 100, Decay::cosine}.rate(0)), 1.0);
}

}  // namespace
}  // namespace needle
