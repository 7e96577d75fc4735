// Faults of other libraries' norms, activations and dropout (BR-025 to BR-030), and what dropout promises.
#include <cmath>

#include "needle/ops/ops.h"
#include "tests/agree.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

class NormActivationBugs : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(, NormActivationBugs, testing::ValuesIn(all_devices()), device_name);

TEST_P(NormActivationBugs, BR025_LargeMeanAndSmallSpread) {
  std::vector<float> rows;
  for (int i = 0; i < 16; ++i) rows.push_back(static_cast<float>(1000 + i * 0.001));
  const std::vector<double> wanted{
      -1.3415077616349704, -1.166825163985656,   -0.9812249039832591,  -0.8065423063339446,
      -0.6209420463315479, -0.44625944868223333, -0.27157685103291873, -0.085976591030522,
      0.08870600661879255, 0.2633886042681071,   0.44898886427050383,  0.6236714619198184,
      0.8092717219222152,  0.9839543195715297,   1.1586369172208442,   1.344237177223241};
  const Tensor x(NDArray::from(rows, {16}, device()));
  EXPECT_TRUE(agrees(layer_norm(x).array(), array(wanted), 1e-5));
  const Tensor large(array({40000, 40001, 40002, 40003}, {4}, DType::f32));
  const double a = 1.3416354199689269, b = 0.447211806656309;
  EXPECT_TRUE(agrees(layer_norm(large).array(), array({-a, -b, b, a}), 1e-5));
}

// More rows than one block of the kernels adds up.
TEST_P(NormActivationBugs, GradientsOfManyRowsEqualTheDefinition) {
  const auto gradients_of = [&](auto norm) {
    const Tensors leaves{Tensor(normal({70, 5}, 1), true), Tensor(normal({5}, 2), true),
                         Tensor(normal({5}, 3), true)};
    norm(leaves[0], leaves[1], leaves[2]).backward(normal({70, 5}, 4));
    return NDArrays{leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
  };
  const NDArrays ours = gradients_of(
      [](const Tensor& x, const Tensor& weight, const Tensor& bias) { return layer_norm(x, weight, bias); });
  const NDArrays right = gradients_of([](const Tensor& x, const Tensor& weight, const Tensor& bias) {
    return layer_norm_definition(x, weight, bias, 1e-5);
  });
  for (std::size_t i = 0; i < right.size(); ++i)
    EXPECT_TRUE(agrees(ours[i], right[i], within(1e-12), 10)) << i;
}

TEST_P(NormActivationBugs, BR027_EpsilonInsideTheRootOfTheBiasedVariance) {
  for (const DType dtype : dtypes()) {
    const Tensor x(array({0.001, 0.002, 0.003}, {3}, dtype));
    EXPECT_TRUE(agrees(layer_norm(x).array(), array({-0.30618621784789724, 0, 0.30618621784789724}), 1e-6));
  }
}

TEST_P(NormActivationBugs, BR028_TheTwoFormsOfGelu) {
  const std::vector<double> points{-3, -2, -1, -0.5, 0, 0.5, 1, 2, 3};
  const std::vector<double> exact{
      -0.004049694094890287, -0.04550026389635844, -0.15865525393145707, -0.15426876936299344, 0,
      0.34573123063700656,   0.8413447460685429,   1.9544997361036416,   2.99595030590511},
      by_tanh{-0.0036373920817730195, -0.045402305912224966, -0.15880800939172326, -0.15428599017485609, 0,
              0.34571400982514394,    0.8411919906082768,    1.9545976940877752,   2.9963626079182273},
      exact_slope{-0.011945647204183927, -0.0852318010781969, -0.08331547058768629, 0.13250487534383712, 0.5,
                  0.8674951246561629,    1.0833154705876864,  1.085231801078197,    1.011945647204184},
      tanh_slope{-0.011584166630969516, -0.08609925662361825, -0.08296408384578255, 0.13263009646535764, 0.5,
                 0.8673699035346424,    1.0829640838457826,   1.0860992566236183,   1.0115841666309695};
  for (const DType dtype : dtypes()) {
    const double bound = dtype == DType::f64 ? 1e-13 : 1e-6;
    for (const bool recorded : {false, true}) {
      const Tensor x = leaf(points, {9}, dtype);
      const auto slope = [&](const Tensor& y) { return gradients(sum(y), {x}, {}, recorded)[0].array(); };
      EXPECT_TRUE(agrees(gelu(x).array(), array(exact), bound));
      EXPECT_TRUE(agrees(slope(gelu(x)), array(exact_slope), bound));
      EXPECT_TRUE(agrees(gelu(x, GeluForm::tanh).array(), array(by_tanh), bound));
      EXPECT_TRUE(agrees(slope(gelu(x, GeluForm::tanh)), array(tanh_slope), bound));
    }
  }
}

TEST_P(NormActivationBugs, BR030_DropoutsGradientFollowsItsMaskEvenAtZeros) {
  std::vector<double> values(1000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = i % 4 == 0 ? 0 : static_cast<double>(i);
  for (const double p : {0.0, 0.1, 0.5, 1.0}) {
    for (const bool recorded : {false, true}) {
      const Tensor x = leaf(values);
      Generator random(3);
      const Tensor y = dropout(x, p, random);
      const std::vector<double> slope = gradients(sum(y), {x}, {}, recorded)[0].array().to_vector<double>(),
                                out = y.array().to_vector<double>();
      double kept = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        EXPECT_TRUE(slope[i] == 0 || std::abs(slope[i] - 1 / (1 - p)) < within(1e-15)) << slope[i];
        EXPECT_NEAR(out[i], values[i] * slope[i], within(1e-12) * std::max(1.0, values[i]));
        kept += slope[i] != 0;
      }
      EXPECT_NEAR(kept, 1000 * (1 - p), 50);
      EXPECT_TRUE((p > 0 && p < 1) || kept == 1000 * (1 - p));
    }
  }
  Generator random(1);
  EXPECT_TRUE(contains(error_of([&] { dropout(leaf({1}), 1.5, random); }), {"dropout", "1.5"}));
}

TEST_P(NormActivationBugs, DropoutDrawsNewMasksFromItsStreamAndTheSameFromTheSamePlace) {
  const Tensor x(NDArray::ones({64}, DType::f32, device()));
  Generator random(1);
  const NDArray first = dropout(x, 0.5, random).array(), second = dropout(x, 0.5, random).array();
  EXPECT_FALSE(same(first, second));
  Generator again(1);
  EXPECT_TRUE(same(dropout(x, 0.5, again).array(), first));
  Generator later(random.seed(), 64);
  EXPECT_TRUE(same(dropout(x, 0.5, later).array(), second));
}

TEST_P(NormActivationBugs, ExtremeInputsStayFinite) {
  const Tensor x = leaf({-1e30, -1000, -100, 0, 100, 1000, 1e30}, {7}, DType::f32);
  for (const auto f :
       {+[](const Tensor& in) { return sigmoid(in); }, +[](const Tensor& in) { return tanh(in); },
        +[](const Tensor& in) { return silu(in); }, +[](const Tensor& in) { return softplus(in); },
        +[](const Tensor& in) { return gelu(in); }, +[](const Tensor& in) { return relu(in); },
        +[](const Tensor& in) { return softmax(in); }, +[](const Tensor& in) { return logsumexp(in); }}) {
    const Tensor y = f(x);
    for (const double value : y.array().to_vector<double>()) EXPECT_TRUE(std::isfinite(value)) << y.array();
    const NDArray slope = gradients(sum(y), {x})[0].array();
    for (const double value : slope.to_vector<double>()) EXPECT_TRUE(std::isfinite(value)) << slope;
  }
}

}  // namespace
}  // namespace needle
