// The loss: S15 and S16, and faults of other libraries' losses (BR-016 to BR-021).
#include <cmath>

#include "needle/ops/ops.h"
#include "tests/agree.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

class CrossEntropy : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(, CrossEntropy, testing::ValuesIn(all_devices()), device_name);

TEST_P(CrossEntropy, S15_MeanOverValidTargetsOfTheWholeBatch) {
  // Micro-batches with one and with three valid targets: their losses and gradients add up to those of the
  // whole when each is divided by the number of all valid targets.
  const NDArray logits = normal({6, 5}, 1), labels = ids({1, -100, 0, 4, 3, -100}, {6});
  const Tensor whole(logits, true), parts(logits, true);
  const Tensor loss = cross_entropy(whole, labels);
  loss.backward();
  double total = 0;
  for (const std::int64_t first : {0, 2}) {
    const std::int64_t last = first == 0 ? 2 : 6;
    const Tensor part = cross_entropy(slice(parts, 0, first, last), labels.slice(0, first, last),
                                      {{}, static_cast<double>(valid_labels(labels, -100))});
    part.backward();
    total += part.item();
  }
  EXPECT_NEAR(total, loss.item(), within(1e-14));
  EXPECT_TRUE(agrees(parts.grad(), whole.grad()));
  const NDArray rows = cross_entropy_rows(whole, labels).array();
  EXPECT_NEAR(loss.item(), reduce(Sum{}, rows).item() / 4, within(1e-14));
  EXPECT_NEAR(cross_entropy(whole, labels, {{}, 1}).item(), reduce(Sum{}, rows).item(), within(1e-14));
  const double first = cross_entropy(slice(parts, 0, 0, 2), labels.slice(0, 0, 2)).item(),
               second = cross_entropy(slice(parts, 0, 2, 6), labels.slice(0, 2, 6)).item();
  EXPECT_GT(std::abs((first + second) / 2 - loss.item()), 0.01);  // the mean of means is another number
}

TEST_P(CrossEntropy, S15_BR017_NoValidTargetGivesZeroAndZeroGradient) {
  for (const DType dtype : dtypes()) {
    const Tensor logits = leaf({1, 2, 3, 0, 0, 0}, {2, 3}, dtype);
    const NDArray labels = ids({-100, -100}, {2});
    EXPECT_EQ(valid_labels(labels, -100), 0);
    const Tensor loss = cross_entropy(logits, labels);
    EXPECT_EQ(loss.item(), 0);
    EXPECT_TRUE(
        same(gradients(loss, {logits}, {}, true)[0].array(), NDArray::zeros({2, 3}, dtype, device())));
    loss.backward();
    EXPECT_TRUE(same(logits.grad(), NDArray::zeros({2, 3}, dtype, device())));
  }
  const Tensor nothing(NDArray::zeros({0, 3}, DType::f32, device()), true);
  EXPECT_EQ(cross_entropy(nothing, ids({}, {0})).item(), 0);
}

TEST_P(CrossEntropy, S16_IgnoreLabelIsSettableAndOtherLabelsOutsideAreErrors) {
  const Tensor logits(normal({4, 3}, 1));
  const NDArray rows = cross_entropy_rows(logits, ids({0, 2, -100, 2}, {4})).array();
  EXPECT_EQ(rows.item({2}), 0);
  EXPECT_TRUE(same(cross_entropy_rows(logits, ids({0, 7, 1, 2}, {4}), {7, 0}).array().slice(0, 0, 1),
                   rows.slice(0, 0, 1)));
  EXPECT_EQ(cross_entropy_rows(logits, ids({0, 7, 1, 2}, {4}), {7, 0}).array().item({1}), 0);
  // A class may be the ignored one.
  EXPECT_EQ(cross_entropy_rows(logits, ids({0, 2, 1, 2}, {4}), {2, 0}).array().item({3}), 0);
  EXPECT_TRUE(contains(error_of([&] {
                         cross_entropy(logits, ids({0, 1, -100, 2}, {4}), {{7, 0}, 0});
                       }),
                       {"label -100", "row 2", "[0, 3)", "7"}));
  EXPECT_TRUE(contains(error_of([&] { cross_entropy(logits, ids({0, 1}, {2})); }), {"[4, 3]", "[4]", "[2]"}));
  EXPECT_TRUE(contains(error_of([&] {
                         cross_entropy(logits, ids({0, 1, 2, 0}, {4}), {{-100, 1.5}, 0});
                       }),
                       {"smoothing", "1.5"}));
}

TEST_P(CrossEntropy, S16_NoIdOutsideTheTableReachesAnEmbedding) {
  const Tensor table(normal({4, 2}, 1));
  for (const std::int64_t bad : {-1, -100, 4}) {
    const std::string value = "index " + std::to_string(bad);
    EXPECT_TRUE(contains(error_of([&] {
                           gather_rows(table, ids({0, 1, bad}, {3}));
                         }),
                         {"gather_rows", value, "position 2", "[0, 4)"}));
    EXPECT_TRUE(contains(error_of([&] {
                           scatter_rows(table, ids({0, 1, 2, bad}, {4}), 4);
                         }),
                         {value, "position 3"}));
    EXPECT_TRUE(contains(error_of([&] { gather(table, 0, ids({0, bad}, {1, 2})); }), {value, "position 1"}));
  }
}

TEST_P(CrossEntropy, BR016_IgnoredTargetsDoNotCountInTheMean) {
  for (const DType dtype : dtypes()) {
    const Tensor logits = leaf({2, 1, 0, 0, 0, 0, 1, 2, 3}, {3, 3}, dtype);
    const Tensor loss = cross_entropy(logits, ids({0, -100, 2}, {3}));
    EXPECT_NEAR(loss.item(), 0.40760596444438013, within(1e-6));
    loss.backward();
    const double a = 0.16737952211258905, b = 0.12236423552739886, c = 0.045015286585190224;
    EXPECT_TRUE(agrees(logits.grad(), array({-a, b, c, 0, 0, 0, c, b, -a}, {3, 3})));
    EXPECT_EQ(largest_magnitude(logits.grad()[1]), 0);
  }
}

TEST_P(CrossEntropy, BR019_CommonOffsetsAreNotSwallowed) {
  struct Case {
    double first, second;
    std::int64_t target;
    double loss, gradient;  // of the first logit
  };
  const double half = 0.6931471805599453;
  for (const Case& c :
       {Case{1e8, 1e8, 1, half, 0.5}, Case{1e4, 1e4, 0, half, -0.5},
        Case{1000, 1001, 0, 1.3132616875182066, -0.7310585786300049}, Case{-1e30, -1e30, 0, half, -0.5}}) {
    for (const DType dtype : dtypes()) {
      for (const bool recorded : {false, true}) {
        const Tensor logits = leaf({c.first, c.second}, {1, 2}, dtype);
        const Tensor loss = cross_entropy(logits, ids({c.target}, {1}));
        EXPECT_NEAR(loss.item(), c.loss, within(1e-6));
        EXPECT_TRUE(agrees(gradients(loss, {logits}, {}, recorded)[0].array(),
                           array({c.gradient, -c.gradient}, {1, 2}), 1e-6));
      }
    }
  }
}

TEST_P(CrossEntropy, BR021_LabelOutsideIsAnErrorThatNamesIt) {
  const Tensor logits(normal({2, 3}, 1, DType::f32));
  for (const std::vector<std::int64_t>& bad :
       {std::vector<std::int64_t>{0, 3}, {0, -1}, {0, -4}, {2147483647, 0}}) {
    const std::size_t row = bad[0] == 0 ? 1 : 0;
    EXPECT_TRUE(
        contains(error_of([&] { cross_entropy(logits, ids(bad, {2})); }),
                 {"label " + std::to_string(bad[row]), "row " + std::to_string(row), "[0, 3)", "-100"}));
  }
}

TEST_P(CrossEntropy, ManyClassesAndRowsEqualTheDefinition) {
  const NDArray logits = normal({37, 1031}, 1, DType::f32);
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < 37; ++i) labels.push_back(i % 5 == 0 ? -100 : (i * 97) % 1031);
  for (const double smoothing : {0.0, 0.1, 1.0}) {
    const Tensor x(logits, true), wide(logits.cast(DType::f64).to(cpu()), true);
    const Tensor ours = cross_entropy_rows(x, ids(labels, {37}), {-100, smoothing});
    const Tensor right = cross_entropy_rows_definition(wide, NDArray::from(labels, {37}), {-100, smoothing});
    EXPECT_TRUE(agrees(ours.array(), right.array()));
    const NDArray seed = normal({37}, 2);
    ours.backward(seed.cast(DType::f32));
    right.backward(seed.to(cpu()).cast(DType::f64));
    EXPECT_TRUE(agrees(x.grad(), wide.grad(), 1e-5, largest_magnitude(seed)));
  }
}

TEST_P(CrossEntropy, ImpossibleClassesHaveInfiniteLossesAndNoNaN) {
  const Tensor logits = leaf({0, -HUGE_VAL, 1, 0, -HUGE_VAL, 1}, {2, 3});
  const Tensor rows = cross_entropy_rows(logits, ids({0, 2}, {2}));
  EXPECT_NEAR(rows.array().item({0}), std::log(1 + std::exp(1.0)), within(1e-12));
  sum(rows).backward();
  EXPECT_EQ(logits.grad().item({0, 1}), 0);
  EXPECT_EQ(cross_entropy_rows(logits, ids({1, 0}, {2})).array().item({0}), HUGE_VAL);
}

TEST_P(CrossEntropy, GradientInPlaceTouchesNothingThatOthersRead) {
  const NDArray start = normal({4, 5}, 1);
  const Tensor x(start, true);
  const Tensor logits = x * 2.0;
  const NDArray before = logits.array().copy();
  cross_entropy(logits, ids({0, 1, 2, 3}, {4})).backward();
  EXPECT_TRUE(same(logits.array(), before));  // held here, so it must not be overwritten
  const NDArray held = x.grad().copy();
  Tensor(x).clear_grad();
  cross_entropy(x * 2.0, ids({0, 1, 2, 3}, {4})).backward();  // nobody holds the logits
  EXPECT_TRUE(same(x.grad(), held));
  cross_entropy(x, ids({0, 1, 2, 3}, {4})).backward();  // the logits are a leaf
  EXPECT_TRUE(same(x.array(), start));
}

}  // namespace
}  // namespace needle
