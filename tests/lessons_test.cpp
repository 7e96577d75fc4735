// The answers to the exercises of the lessons, each against something that does not know it.
#include <gtest/gtest.h>

#include <cmath>

#include "lessons/answers/01_chain_rule.h"
#include "lessons/answers/02_broadcasting.h"
#include "lessons/answers/03_what_is_kept.h"
#include "lessons/answers/04_own_op.h"
#include "lessons/answers/05_gradient_check.h"
#include "lessons/answers/06_second_order.h"
#include "lessons/answers/07_two_spirals.h"
#include "lessons/answers/08_overflow.h"
#include "lessons/answers/09_attention.h"
#include "lessons/answers/10_broken_mask.h"
#include "lessons/answers/11_recall.h"
#include "lessons/answers/12_decoder.h"
#include "needle/inspect/gradient_check.h"
#include "needle/needle.h"
#include "tests/agree.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

NDArray numbers(const Shape& shape, std::uint64_t seed, DType dtype = DType::f64) {
  Generator random(seed);
  return NDArray::random({Distribution::Kind::normal, 0, 1}, shape, random, dtype);
}

/// As numbers(), at least 1/2.
NDArray positive(const Shape& shape, std::uint64_t seed) {
  Generator random(seed);
  return NDArray::random({Distribution::Kind::uniform, 0.5, 2}, shape, random, DType::f64);
}

Tensor variable(const std::vector<double>& values) {
  return Tensor(NDArray::from(values, {static_cast<std::int64_t>(values.size())}), true);
}

void expect_gradients(const std::string& name, const TensorFunction& function, const NDArrays& inputs,
                      int orders = 2) {
  for (int order = 1; order <= orders; ++order) {
    const GradientCheckRow row = check_gradient(name, function, inputs, order);
    EXPECT_TRUE(row.passed) << name << ", order " << order << ": " << row.error << ", " << row.difference;
  }
}

TEST(Lessons, ChainRule) {
  for (const double at : {-2.0, -0.3, 0.0, 0.7, 1.9}) {
    const Tensor x = variable({at});
    sum(exp(x * x * -0.5) * sin(x)).backward();
    EXPECT_NEAR(answers::slope_by_hand(at), x.grad().item(), 1e-14);
    const auto f = [](double z) { return std::exp(-z * z / 2) * std::sin(z); };
    EXPECT_NEAR(answers::slope_by_hand(at), (f(at + 1e-5) - f(at - 1e-5)) / 2e-5, 1e-9);
  }
}

TEST(Lessons, GradientOfADivisorInItsOwnShape) {
  const Tensor a(numbers({2, 3}, 1)), g(numbers({2, 3}, 2));
  for (const Shape& shape :
       {Shape{2, 3}, Shape{3}, Shape{1, 3}, Shape{2, 1}, Shape{1, 1}, Shape{1}, Shape{}}) {
    const NDArray b = positive(shape, 3);
    const NDArray ours = answers::gradient_of_divisor(g, a, Tensor(b)).array();
    EXPECT_EQ(ours.shape(), shape);
    std::vector<double> values = b.to_vector<double>(), slopes;
    for (double& value : values) {
      const auto moved = [&](double by) {
        value += by;
        const double loss = sum(g * a / Tensor(NDArray::from(values, shape))).item();
        value -= by;
        return loss;
      };
      slopes.push_back((moved(1e-5) - moved(-1e-5)) / 2e-5);
    }
    EXPECT_TRUE(agrees(ours, NDArray::from(slopes, shape), 1e-7)) << shape;
  }
}

TEST(Lessons, ReciprocalKeepsOneArray) {
  const auto kept = [](Tensor (*invert)(const Tensor&)) {
    const Tensor x(NDArray::full({512, 512}, 0.5), true);
    const std::size_t before = cpu()->memory_stats().live;
    const Tensor loss = sum(log(invert(x + 1.0)));
    return static_cast<double>(cpu()->memory_stats().live - before) / (1 << 20);
  };
  EXPECT_NEAR(kept(answers::reciprocal), 1, 0.01);
  EXPECT_NEAR(kept([](const Tensor& x) { return 1.0 / x; }), 2, 0.01);  // what the exercise says
  expect_gradients(
      "reciprocal", [](const Tensors& in) { return answers::reciprocal(in[0]); }, {positive({2, 3}, 1)}, 3);
}

TEST(Lessons, SnakeOnEveryDevice) {
  expect_gradients(
      "snake", [](const Tensors& in) { return answers::snake(in[0]); }, {numbers({7}, 1)}, 3);
  const NDArray x = numbers({33}, 2, DType::f32);
  for (const Device device : all_devices()) {
    const Tensor there(x.to(device), true);
    const Tensor y = answers::snake(there);
    sum(y).backward();
    const std::vector<double> at = x.to_vector<double>(), values = y.array().to_vector<double>(),
                              slopes = there.grad().to_vector<double>();
    for (std::size_t i = 0; i < at.size(); ++i) {
      EXPECT_NEAR(values[i], at[i] + std::sin(at[i]) * std::sin(at[i]), 1e-6) << device.name();
      EXPECT_NEAR(slopes[i], 1 + std::sin(2 * at[i]), 1e-5) << device.name();
    }
  }
}

TEST(Lessons, HingePassesTheCheck) {
  const NDArray x = NDArray::from<double>({-2, -0.5, 0.9, 1.1, 3}, {5});
  expect_gradients(
      "hinge", [](const Tensors& in) { return answers::hinge(in[0]); }, {x}, 3);
  EXPECT_TRUE(
      agrees(answers::hinge(Tensor(x)).array(), NDArray::from<double>({9, 2.25, 0.01, 0, 0}, {5}), 1e-12));
}

TEST(Lessons, Laplacian) {
  const std::vector<double> at{0.5, -1, 2};
  // A quadratic form's Laplacian is twice the trace of its matrix, whatever stands beside the diagonal.
  const Tensor matrix(numbers({3, 3}, 1));
  const auto form = [&](const Tensor& x) { return sum(x * matmul(matrix, x)); };
  const double trace =
      matrix.array().item({0, 0}) + matrix.array().item({1, 1}) + matrix.array().item({2, 2});
  EXPECT_NEAR(answers::laplacian(form, variable(at)), 2 * trace, 1e-12);
  const auto f = [](const Tensor& x) { return exp(sum(sin(x) * x)) + sum(power(x, 4)); };
  double differences = 0;
  constexpr double kStep = 1e-3;
  for (std::size_t i = 0; i < at.size(); ++i) {
    const auto moved = [&](double by) {
      std::vector<double> there = at;
      there[i] += by;
      return f(variable(there)).item();
    };
    differences += (moved(kStep) - 2 * moved(0) + moved(-kStep)) / (kStep * kStep);
  }
  EXPECT_NEAR(answers::laplacian(f, variable(at)) / differences, 1, 1e-5);
}

TEST(Lessons, BestLineHasNowhereToGo) {
  const Tensor x(numbers({50}, 1)), y = x * -2.0 + 0.5 + Tensor(numbers({50}, 2));
  const auto [slope, intercept] = answers::best_line(x, y);
  const Tensor a = variable({slope}), b = variable({intercept});
  const auto loss_at = [&](const Tensor& da, const Tensor& db) {
    const Tensor error = da * x + db - y;
    return mean(error * error);
  };
  const Tensor loss = loss_at(a, b);
  loss.backward();
  EXPECT_NEAR(a.grad().item(), 0, 1e-13);
  EXPECT_NEAR(b.grad().item(), 0, 1e-13);
  EXPECT_LT(loss.item(), loss_at(a + 0.01, b).item());
  EXPECT_LT(loss.item(), loss_at(a, b - 0.01).item());
}

TEST(Lessons, YesNoLossHoldsForAnyScore) {
  const std::vector<float> scores{-1000, -50, -1, 0, 1, 50, 1000};
  for (const float label : {0.0f, 1.0f}) {
    const Tensor z(NDArray::from(scores, {7}), true), labels(NDArray::full({7}, label));
    const Tensor loss = answers::yes_no_loss(z, labels);
    sum(loss).backward();
    for (std::int64_t i = 0; i < 7; ++i) {
      const double score = scores[static_cast<std::size_t>(i)], wrong = label > 0 ? -score : score;
      const double right = wrong > 30 ? wrong : std::log1p(std::exp(wrong));
      EXPECT_NEAR(loss.array().item({i}), right, 1e-6 * std::max(1.0, right));
      EXPECT_NEAR(z.grad().item({i}), 1 / (1 + std::exp(-score)) - label, 1e-6);
    }
  }
  const Tensor label(NDArray::from<double>({1, 0, 1, 0}, {4}));
  expect_gradients("yes_no_loss", [&](const Tensors& in) { return answers::yes_no_loss(in[0], label); },
                   {numbers({4}, 1)});
}

TEST(Lessons, CausalAttentionIsTheFusedOne) {
  AttentionOptions options;
  options.causal = true;
  Tensors in;
  for (std::uint64_t i = 0; i < 3; ++i) in.emplace_back(numbers({2, 3, 9, 4}, i), true);
  const Tensor ours = answers::causal_attention(in[0], in[1], in[2]);
  const Tensor right = attention(in[0], in[1], in[2], options);
  EXPECT_TRUE(agrees(ours.array(), right.array()));
  const Tensor seed(numbers(ours.shape(), 7));
  const Tensors our_slopes = gradients(ours, in, seed), slopes = gradients(right, in, seed);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(agrees(our_slopes[i].array(), slopes[i].array())) << i;
}

/// Embedded tokens, centred by one of two ways.
class CentredModel : public TokenModel {
 public:
  CentredModel(const ModelConfig& config, bool over_all, Generator& random)
      : TokenModel(config.resolved(), init_of(config, random, cpu(), DType::f32)), over_all_(over_all) {}
  Tensor states(const Tensor& embedded, const SequenceInput&, const Pass&) override {
    return over_all_ ? embedded - mean(embedded, {1}, true) : answers::centred(embedded);
  }
  Cache empty_state(std::int64_t, std::int64_t, std::optional<DType>) override { fail("keeps no state"); }
  void list(Parts& parts) override { parts("token_embedding", token_embedding_); }

 private:
  bool over_all_;
};

TEST(Lessons, CentredStatesReadNoFuture) {
  Generator random(1);
  const DecoderConfig config = DecoderConfig::of_size(11, 9, 8, 1, 1);
  CentredModel causal(config, false, random), broken(config, true, random);
  const SequenceInput input = random_input(causal.config(), 9, random);
  EXPECT_TRUE(measure_boundary(causal, input, random).causal());
  EXPECT_FALSE(measure_boundary(broken, input, random).causal());

  const NDArray x = numbers({2, 5, 3}, 1), y = answers::centred(Tensor(x)).array();
  for (std::int64_t row = 0; row < 2; ++row)
    for (std::int64_t k = 0; k < 3; ++k) {
      double total = 0;
      for (std::int64_t t = 0; t < 5; ++t) {
        total += x.item({row, t, k});
        EXPECT_NEAR(y.item({row, t, k}), x.item({row, t, k}) - total / static_cast<double>(t + 1), 1e-12);
      }
    }
}

TEST(Lessons, DilationsReadFarWithoutAHole) {
  for (const std::int64_t positions : {1, 3, 4, 9, 10, 27, 28}) {
    ModelConfig config = DecoderConfig::of_size(11, 0, 8, 1, 1);
    config.kind = ModelKind::convolution;
    config.initialisation = Initialisation::uniform;
    config.context = positions + 9;
    config.dilations = answers::dilations_to_read(positions);
    config.layers = std::ssize(config.dilations);
    // A layer of kernel 3 makes at most three ways out of one: fewer layers could not reach so many
    // positions.
    EXPECT_TRUE(config.layers == 1 || std::pow(3, config.layers - 1) < static_cast<double>(positions));
    Generator random(1);
    ConvolutionalModel model(config, random);
    const Boundary boundary =
        measure_boundary(model, random_input(model.config(), config.context, random), random);
    EXPECT_GE(boundary.span(), positions);
    EXPECT_TRUE(boundary.holes().empty()) << positions;
  }
}

TEST(Lessons, PaddedLossIsCrossEntropy) {
  const NDArray some = NDArray::from<std::int64_t>({3, -100, 0, 1, -100, 4}, {2, 3});
  const NDArray none = NDArray::full({2, 3}, -100, DType::i64);
  for (const NDArray& labels : {some, none}) {
    const Tensor ours(numbers({2, 3, 5}, 1), true), right(ours.array(), true);
    const Tensor loss = answers::padded_loss(ours, labels), wanted = cross_entropy(right, labels);
    EXPECT_NEAR(loss.item(), wanted.item(), 1e-14);
    loss.backward();
    wanted.backward();
    EXPECT_TRUE(agrees(ours.grad(), right.grad(), 1e-12, 1));
    EXPECT_EQ(largest_magnitude(ours.grad()[0][1]), 0);  // where the label is ignored
  }
}

}  // namespace
}  // namespace needle
