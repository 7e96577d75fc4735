// Faults of other libraries' memory, repeatability and indices (BR-075 to BR-080).
#include "needle/models/decoder.h"
#include "needle/ops/ops.h"
#include "needle/optim/optimizer.h"
#include "needle/threads.h"
#include "tests/agree.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

class PerformanceBugs : public OnDevice {
 protected:
  DecoderConfig config() const { return DecoderConfig::of_size(11, 8, 16, 2, 2); }
  NDArray tokens() const { return ids({1, 4, 10, 7, 3, 3, 5, 2, 9, 0, 6, 8, 1, 2, 3, 4}, {2, 8}); }
};
INSTANTIATE_TEST_SUITE_P(, PerformanceBugs, testing::ValuesIn(all_devices()), device_name);

TEST_P(PerformanceBugs, BR075_TheLossOfLogitsThatAreNeverAllThere) {
  for (const std::int64_t chunk : {0, 1, 2, 3, 4}) {
    const Tensor states = leaf({1, 0, 0, 1, 1, 1, 2, -1}, {4, 2}),
                 table = leaf({0.5, 0, 0, 0.5, -0.5, 0.5}, {3, 2});
    const Tensor loss = linear_cross_entropy(states, table, {}, ids({0, 1, 2, -100}, {4}), {}, chunk);
    loss.backward();
    EXPECT_NEAR(loss.item(), 1.0321032821786005, within(1e-13));
    EXPECT_TRUE(agrees(states.grad(),
                       array({-0.11330722202836559, 0.08225326815739098, -0.025159198928608677,
                              -0.03878275626981642, 0.1918258655952753, -0.06394195519842509, 0, 0},
                             {4, 2}),
                       within(1e-13)));
    EXPECT_TRUE(agrees(table.grad(),
                       array({-0.03662262591793175, 0.2054494229364831, 0.23028253896968304,
                              -0.07756551253963284, -0.19365991305175123, -0.12788391039685018},
                             {3, 2}),
                       within(1e-13)));
  }
}

TEST_P(PerformanceBugs, BR075_MemoryIsThatOfAChunk) {
  constexpr std::int64_t kRows = 512, kClasses = 1000, kChunk = 32;
  const Tensor states(normal({kRows, 4}, 1, DType::f32), true),
      table(normal({kClasses, 4}, 2, DType::f32), true);
  device()->trim_memory();
  const std::size_t before = device()->memory_stats().live;
  linear_cross_entropy(states, table, {}, NDArray::zeros({kRows}, DType::i64, device()), {}, kChunk)
      .backward();
  // Twice: a product of long rows sums up in parts.
  EXPECT_LT(device()->memory_stats().peak - before, 2 * kChunk * kClasses * sizeof(float) + (1 << 16));
}

TEST_P(PerformanceBugs, BR075_OnlyWhatIsWantedIsComputedAndRowsKeepTheirNames) {
  const NDArray labels = ids({0, 1, 2, 9}, {4});
  const Tensor states = leaf({1, 0, 0, 1, 1, 1, 2, -1}, {4, 2}), frozen(normal({3, 2}, 1));
  EXPECT_TRUE(
      contains(error_of([&] { linear_cross_entropy(states, frozen, {}, labels, {}, 2); }), {"row 3"}));
  const Tensor loss = linear_cross_entropy(states, frozen, {}, ids({0, 1, 2, 1}, {4}), {}, 3);
  loss.backward({}, true);
  loss.backward();
  const NDArray twice = states.grad();
  Tensor(states).clear_grad();
  linear_cross_entropy(states, frozen, {}, ids({0, 1, 2, 1}, {4})).backward();
  EXPECT_TRUE(agrees(twice, binary(Add{}, states.grad(), states.grad()), within(1e-13)));
  EXPECT_EQ(linear_cross_entropy(leaf({}, {0, 2}), frozen, {}, ids({}, {0})).item(), 0);
}

TEST_P(PerformanceBugs, BR075_ADecoderWithManyClassesHasTheSameLoss) {
  for (const bool tied : {true, false}) {
    DecoderConfig large = DecoderConfig::of_size(700000, 4, 4, 1, 1);
    large.tied = tied;
    Generator random(1);
    Decoder model(large, random, device());
    const NDArray few = ids({1, 699999, 5, 2, 3, 4, 5, 6}, {2, 4});
    const Tensor chunks = model.loss({few, {}, {}}, few),
                 whole = cross_entropy(model.forward({few, {}, {}}), few);
    EXPECT_NEAR(chunks.item(), whole.item(), 1e-5);
    chunks.backward();
    const std::vector<Parameter> parameters = model.parameters();
    NDArrays gradients;
    for (const Parameter& parameter : parameters) {
      gradients.push_back(parameter.tensor.grad());
      Tensor(parameter.tensor).clear_grad();
    }
    whole.backward();
    for (std::size_t i = 0; i < gradients.size(); ++i)
      EXPECT_TRUE(agrees(gradients[i], parameters[i].tensor.grad(), 1e-4)) << parameters[i].name;
  }
}

TEST_P(PerformanceBugs, BR076_NothingPilesUp) {
  const std::size_t before = device()->memory_stats().live;
  Generator random(1);
  Decoder model(config(), random, device());
  Adam optimizer(groups_by_rank(model.parameters(), 0.1), AdamDecay::decoupled);
  const std::size_t built = device()->memory_stats().live;
  double sum = 0;
  for (int step = 0; step < 30; ++step) {
    const Tensor loss = model.loss({tokens(), {}, {}}, tokens());
    loss.backward();
    optimizer.step(1e-3);
    optimizer.clear_gradients();
    sum += loss.item();
  }
  EXPECT_GT(sum, 0);
  EXPECT_EQ(device()->memory_stats().live, built);
  // Graphs that nobody walks go with their results.
  for (int i = 0; i < 30; ++i) model.forward({tokens(), {}, {}});
  EXPECT_EQ(device()->memory_stats().live, built);
  EXPECT_GT(built, before);
}

TEST_P(PerformanceBugs, BR077_TheSameSeedGivesTheSameLosses) {
  const int before = threads();
  const auto losses = [&](int count) {
    set_threads(count);
    Generator random(1);
    Decoder model(DecoderConfig::of_size(11, 8, 64, 2, 4), random, device());
    Adam optimizer(groups_by_rank(model.parameters(), 0.1), AdamDecay::decoupled);
    std::vector<double> result;
    for (int step = 0; step < (device() == cpu() ? 50 : 5); ++step) {
      const Tensor loss = model.loss({tokens(), {}, {}}, tokens());
      loss.backward();
      optimizer.step(1e-3, gradient_norm(model.parameters(), 1).scale);
      optimizer.clear_gradients();
      result.push_back(loss.item());
    }
    return result;
  };
  const std::vector<double> first = losses(1);
  for (const int count : device() == cpu() ? std::vector{1, 2, 4, 8} : std::vector{1, 2}) {
    const std::vector<double> here = losses(count);
    EXPECT_EQ(here, losses(count)) << count;
    EXPECT_NEAR(here[0], first[0], within(1e-6)) << count;
    EXPECT_NEAR(here.back(), first.back(), 1e-4) << count;
  }
  set_threads(before);
}

TEST_P(PerformanceBugs, BR080_MoreRowsThanSixteenBitsCount) {
  const auto some =
      device() == cpu() ? std::vector<std::int64_t>{65535, 65536, 70000} : std::vector<std::int64_t>{65536};
  for (const std::int64_t rows : some) {
    const NDArray x = normal({rows, 8}, 3, DType::f32);
    const auto last = [&](const Tensor& y) { return y.array().slice(0, rows - 1, rows); };
    const Tensor end(x.slice(0, rows - 1, rows));
    EXPECT_TRUE(agrees(last(layer_norm(Tensor(x))), layer_norm(end).array(), 1e-6));
    EXPECT_TRUE(agrees(last(softmax(Tensor(x))), softmax(end).array(), 1e-6));
    const NDArray left = x.reshape({rows, 2, 4}), right = normal({rows, 4, 1}, 4, DType::f32);
    EXPECT_TRUE(agrees(matmul(left, right).slice(0, rows - 1, rows),
                       matmul(left.slice(0, rows - 1, rows), right.slice(0, rows - 1, rows)), 1e-6));
  }
}

// As a view without elements of its own: the offset is what must not wrap.
TEST_P(PerformanceBugs, BR080_OffsetsPast32Bits) {
  const View x{nullptr, DType::f32, {239675, 8960}, compact_strides({239675, 8960})};
  EXPECT_EQ(239674 * x.strides[0] + 8959 * x.strides[1], 2147487999);
  EXPECT_EQ(x.count(), 239675LL * 8960);
}

}  // namespace
}  // namespace needle
