// Products of 16-bit operands: what is rounded, what is not, and how near the results stay.
#include "needle/precision.h"

#include <thread>

#include "backends/cpu/gemm.h"
#include "needle/models/decoder.h"
#include "needle/ops/ops.h"
#include "needle/optim/optimizer.h"
#include "tests/agree.h"
#include "tests/decoders.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

constexpr DType kHalves[] = {DType::bf16, DType::f16};

/// The distance of two arrays over the size of the second.
double relative_distance(const NDArray& x, const NDArray& right) {
  const std::vector<double> a = x.to_vector<double>(), b = right.to_vector<double>();
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(difference / size);
}

class PrecisionTest : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(, PrecisionTest, testing::ValuesIn(all_devices()), device_name);

TEST_P(PrecisionTest, AScopeRoundsOperandsAndNothingElse) {
  const Tensor x(normal({5, 8}, 1, DType::f32), true), weight(normal({8, 6}, 2, DType::f32), true),
      bias(normal({6}, 3, DType::f32), true), residual(normal({5, 6}, 4, DType::f32), true);
  EXPECT_EQ(product_dtype(), DType::f32);
  for (const DType half : kHalves) {
    const PrecisionScope scope(half);
    EXPECT_EQ(linear(x, weight, bias).dtype(), half);
    EXPECT_EQ(linear(x, weight, bias, Epilogue::gelu, residual).dtype(), DType::f32);
    EXPECT_EQ(linear(x, weight, {}, Epilogue::none, {}, DType::f32).dtype(), DType::f32);
    EXPECT_EQ(matmul_transposed(x, transpose(weight)).dtype(), DType::f32);
    // Operands rounded first, and sums of their products: exactly what float32 gives for rounded numbers.
    const auto rounded = [&](const Tensor& t) { return Tensor(t.array().cast(half).cast(DType::f32)); };
    const Tensor sums = linear(x, weight, bias, Epilogue::none, residual);
    const PrecisionScope full(DType::f32);
    EXPECT_TRUE(agrees(sums.array(),
                       linear(rounded(x), rounded(weight), bias, Epilogue::none, residual).array(), 1e-6));
    sum(sums).backward();
    for (const Tensor& leaf : {x, weight, bias, residual}) EXPECT_EQ(leaf.grad().dtype(), DType::f32);
  }
  EXPECT_EQ(product_dtype(), DType::f32);
  EXPECT_TRUE(contains(error_of([] { PrecisionScope(DType::f64); }), {"f64", "bf16"}));
}

TEST_P(PrecisionTest, AWeightIsRoundedOnceUntilItIsWritten) {
  NDArray weight = normal({3, 4}, 1, DType::f32);
  const NDArray copy = weight.rounded(DType::bf16);
  EXPECT_TRUE(weight.rounded(DType::bf16).is_same(copy));
  weight.assign(NDArray::ones({3, 4}, DType::f32, device()));
  EXPECT_FALSE(weight.rounded(DType::bf16).is_same(copy));
  EXPECT_EQ(weight.rounded(DType::bf16).item({2, 3}), 1);
  EXPECT_TRUE(weight.rounded(DType::f32).is_same(weight));
  EXPECT_TRUE(weight.transpose().rounded(DType::bf16).is_same(weight.rounded(DType::bf16).transpose()));
  // A part of an array has no copy of its own.
  EXPECT_EQ(weight.slice(1, 1, 3).rounded(DType::f16).shape(), (Shape{3, 2}));
}

TEST_P(PrecisionTest, OpsOfSixteenBitsAgreeWithFloat32OfTheSameNumbers) {
  struct Case {
    const char* name;
    std::vector<Shape> shapes;
    std::function<Tensor(const Tensors&)> function;
  };
  const Case cases[] = {
      {"attention",
       {{2, 3, 5, 4}, {2, 3, 5, 4}, {2, 3, 5, 7}},
       [](const Tensors& x) { return attention(x[0], x[1], x[2], {.causal = true}); }},
      {"self_attention",
       {{2, 70, 36}},
       [](const Tensors& x) { return self_attention(x[0], 4, 1, {.soft_cap = 3}); }},
      {"silu, gated", {{3, 9}, {3, 9}}, [](const Tensors& x) { return silu(x[0]) * x[1]; }},
      {"matmul", {{4, 5}, {5, 3}}, [](const Tensors& x) { return matmul(x[0], x[1]); }},
      {"layer_norm of a residual stream",
       {{5, 33}},
       [](const Tensors& x) { return layer_norm(x[0], {}, {}); }},
      {"what norms add to a residual stream",
       {{5, 33}},
       [](const Tensors& x) { return rms_norm(x[0], {}) + layer_norm(x[0], {}, {}) + x[0]; }},
      {"linear with a residual",
       {{5, 4}, {4, 3}, {5, 3}},
       [](const Tensors& x) { return linear(x[0], x[1], {}, Epilogue::gelu, x[2]); }},
  };
  for (const Case& c : cases) {
    for (const DType half : kHalves) {
      Tensors narrow, wide;
      std::uint64_t seed = 1;
      for (const Shape& shape : c.shapes) {
        const NDArray x = normal(shape, seed++, DType::f32).cast(half);
        narrow.emplace_back(x, true);
        wide.emplace_back(x.cast(DType::f32), true);
      }
      const Tensor y = c.function(narrow), right = c.function(wide);
      EXPECT_EQ(y.dtype(), half) << c.name;
      EXPECT_LT(relative_distance(y.array(), right.array()), 5e-3) << c.name;
      const NDArray seed_array = normal(y.shape(), 9, DType::f32).cast(half);
      y.backward(seed_array);
      right.backward(seed_array.cast(DType::f32));
      for (std::size_t i = 0; i < narrow.size(); ++i)
        EXPECT_LT(relative_distance(narrow[i].grad(), wide[i].grad()), 1e-2) << c.name << ", input " << i;
    }
  }
}

TEST_P(PrecisionTest, NormsRoundTheirResultAlone) {
  for (const DType half : kHalves) {
    const Tensor x(normal({6, 32}, 1, DType::f32), true), weight(normal({32}, 2, DType::f32), true),
        bias(normal({32}, 3, DType::f32), true);
    const NDArray seed = normal({6, 32}, 4, DType::f32).cast(half);
    const auto gradients_of = [&](std::optional<DType> result, const NDArray& from) {
      for (const Tensor& leaf : {x, weight, bias}) Tensor(leaf).clear_grad();
      const Tensor y = layer_norm(x, weight, bias, 1e-5, result);
      y.backward(from);
      return NDArrays{y.array().cast(DType::f32), x.grad(), weight.grad(), bias.grad()};
    };
    const NDArrays narrow = gradients_of(half, seed), wide = gradients_of({}, seed.cast(DType::f32));
    EXPECT_TRUE(same(narrow[0], wide[0].cast(half).cast(DType::f32)));
    for (std::size_t i = 1; i < 4; ++i) EXPECT_TRUE(same(narrow[i], wide[i]));
  }
}

TEST_P(PrecisionTest, ADecodersGradientsStayWithinAHundredth) {
  for (const auto& [name, config] : various_decoders()) {
    DecoderConfig plain = config;
    plain.dropout = 0;
    Generator random(1);
    Decoder model(plain, random, device());
    const NDArray tokens = ids({1, 4, 10, 7, 3, 3, 5, 2}, {2, 4});
    const auto gradient_of = [&](DType dtype, bool half_residual) {
      for (Parameter& parameter : model.parameters()) parameter.tensor.clear_grad();
      const PrecisionScope scope(dtype, half_residual);
      const Tensor loss = model.loss({tokens, {}, {}}, tokens);
      EXPECT_EQ(loss.dtype(), DType::f32);
      loss.backward();
      NDArrays result;
      for (const Parameter& parameter : model.parameters()) result.push_back(parameter.tensor.grad());
      return std::pair(loss.item(), result);
    };
    const auto [right_loss, right] = gradient_of(DType::f32, false);
    for (const auto& [half, half_residual] : {std::pair(DType::bf16, false), std::pair(DType::f16, false),
                                              std::pair(DType::bf16, true), std::pair(DType::f16, true)}) {
      const auto [loss, gradient] = gradient_of(half, half_residual);
      EXPECT_NEAR(loss / right_loss, 1, 1e-2) << name;
      double difference = 0, size = 0;
      for (std::size_t i = 0; i < right.size(); ++i) {
        EXPECT_EQ(gradient[i].dtype(), DType::f32);
        const double norm_squared = reduce(Sum{}, binary(Multiply{}, right[i], right[i])).item();
        difference += std::pow(relative_distance(gradient[i], right[i]), 2) * norm_squared;
        size += norm_squared;
      }
      // Eight digits less in the stream than in what is added to it are seen in every gradient.
      EXPECT_LT(std::sqrt(difference / size), half_residual ? 2e-2 : 1e-2) << name << ' ' << name_of(half);
    }
  }
}

TEST_P(PrecisionTest, TheLossInChunksIsTheWholeOne) {
  const Tensor states(normal({7, 8}, 1, DType::f32), true), table(normal({20, 8}, 2, DType::f32), true);
  const NDArray labels = ids({1, 0, 19, 5, -100, 2, 3}, {7});
  for (const DType half : kHalves) {
    const PrecisionScope scope(half);
    const auto results = [&](const Tensor& loss) {
      Tensor(states).clear_grad(), Tensor(table).clear_grad();
      loss.backward();
      return NDArrays{loss.array(), states.grad(), table.grad()};
    };
    const NDArrays whole = results(cross_entropy(matmul_transposed(states, table), labels)),
                   chunks = results(linear_cross_entropy(states, table, {}, labels, {}, 3));
    for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_LT(relative_distance(chunks[i], whole[i]), 1e-2);
  }
}

// By oneDNN on any processor: the products of training, batched and transposed ones among them.
TEST_P(PrecisionTest, ProductsByOneDnnAreThoseOfFloat32) {
  if (available_gemms().size() < 2) GTEST_SKIP() << "this build has no oneDNN";
  const Tensor x(normal({3, 5, 8}, 1, DType::f32), true), weight(normal({8, 6}, 2, DType::f32), true),
      bias(normal({6}, 3, DType::f32), true);
  const NDArray a = normal({4, 9, 7}, 4, DType::f32).cast(DType::bf16),
                b = normal({4, 5, 7}, 5, DType::f32).cast(DType::bf16);
  const auto results = [&](Gemm library) {
    const GemmScope choice(library);
    const PrecisionScope scope(DType::bf16);
    for (const Tensor& leaf : {x, weight, bias}) Tensor(leaf).clear_grad();
    const Tensor y = linear(x, weight, bias, Epilogue::gelu);
    sum(matmul_transposed(y, weight * 0.5)).backward();
    return NDArrays{y.array(), x.grad(), weight.grad(), bias.grad(), matmul(a, b.transpose())};
  };
  const NDArrays ours = results(Gemm::onednn), right = results(Gemm::openblas);
  for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_LT(relative_distance(ours[i], right[i]), 1e-2) << i;
}

TEST_P(PrecisionTest, MixturesGoTheirWayOrAreRefused) {
  const auto half = [&](const Shape& shape, std::uint64_t seed) {
    return Tensor(normal(shape, seed, DType::f32).cast(DType::bf16), true);
  };
  const Tensor x = half({3, 4}, 1), weight = half({4, 4}, 2), bias(normal({4}, 3, DType::f32), true),
               residual(normal({3, 4}, 4, DType::f32), true);
  // A residual's gradient has the residual's type, and a result that is wanted in float32 is that.
  linear(x, weight, bias, Epilogue::none, residual, DType::bf16)
      .backward(NDArray::ones({3, 4}, DType::bf16, device()));
  EXPECT_EQ(residual.grad().dtype(), DType::f32);
  EXPECT_EQ(linear(x, weight, {}, Epilogue::none, {}, DType::f32).dtype(), DType::f32);
  const Tensor narrow = half({3, 4}, 5);
  EXPECT_EQ(linear(x, weight, bias, Epilogue::none, narrow).dtype(), DType::bf16);
  const Tensor gain(normal({4}, 6, DType::f32));
  EXPECT_EQ(layer_norm(narrow, gain, gain).dtype(), DType::bf16);
  EXPECT_TRUE(contains(error_of([&] { layer_norm(narrow, narrow, {}); }), {"layer_norm", "[4]"}));
  // The second order, with a float32 bias beside.
  const Tensor first = gradients(sum(linear(x, weight, bias, Epilogue::gelu)), {x}, {}, true)[0];
  EXPECT_EQ(gradients(sum(first), {weight})[0].shape(), weight.shape());
  const Tensor query = half({1, 2, 3, 4}, 5), scores(normal({1, 1, 3, 3}, 6, DType::f32), true);
  const Tensor of_query = gradients(sum(attention(query, query, query, {}, scores)), {query}, {}, true)[0];
  EXPECT_EQ(gradients(sum(of_query), {scores})[0].dtype(), DType::f32);
  const bool narrows = exact() == DType::f32;  // then halves are possible
  for (const DType dtype :
       {narrows ? DType::f64 : DType::bf16, DType::i64, narrows ? DType::i32 : DType::f32}) {
    EXPECT_TRUE(contains(error_of([&] {
                           layer_norm(Tensor(normal({2, 4}, 1)), {}, {}, 1e-5, dtype);
                         }),
                         {"layer_norm", std::string(name_of(exact())), std::string(name_of(dtype))}));
  }
}

// As of a batch of 8192 targets and many classes: what each class gets is far below float16's least number.
TEST_P(PrecisionTest, SmallSlopesOfManyTargetsDoNotVanish) {
  const NDArray labels = NDArray::arange(48, DType::i64, device());
  LossOptions options;
  options.divisor = 8192;
  const auto gradients_in = [&](DType dtype) {
    const PrecisionScope scope(dtype);
    const Tensor states(normal({48, 16}, 1, DType::f32), true),
        table(unary(MultiplyScalar{0.02}, normal({3000, 16}, 2, DType::f32)), true);
    const double scale = dtype == DType::f16 ? 65536 : 1;
    const Tensor loss = linear_cross_entropy(states, table, {}, labels, options, 20);
    loss.backward(NDArray::scalar(scale, DType::f32, device()));
    NDArrays result;
    for (const Tensor& x : {states, table})
      result.push_back(unary(MultiplyScalar{1 / scale}, x.grad().cast(DType::f32)));
    return result;
  };
  const NDArrays right = gradients_in(DType::f32);
  for (const DType dtype : kHalves) {
    const NDArrays ours = gradients_in(dtype);
    for (std::size_t i = 0; i < right.size(); ++i)
      EXPECT_LT(relative_distance(ours[i], right[i]), 2e-2) << name_of(dtype) << ' ' << i;
  }
}

TEST_P(PrecisionTest, AnOptimizersStepKeepsTheCopiesOfWeightsUpToDate) {
  for (const DType dtype : kHalves) {
    const Tensor used(normal({20, 300}, 1, DType::f32), true), unused(normal({7}, 2, DType::f32), true);
    Adam adam({{{{"used", used, true, {}}, {"unused", unused, true, {}}}, 0.1}}, AdamDecay::decoupled);
    Sgd sgd({{{{"used", used, true, {}}}, 0}}, 0.9);
    const NDArray copy = used.array().rounded(dtype);
    for (int step = 0; step < 2; ++step) {
      Tensor(used).mutable_grad() = normal({20, 300}, 3, DType::f32);
      Tensor(unused).mutable_grad() = normal({7}, 4, DType::f32);
      adam.step(0.1);
      sgd.step(0.1);
    }
    EXPECT_TRUE(used.array().rounded(dtype).shares_elements_with(copy));  // not rounded again
    EXPECT_TRUE(same(copy, used.array().cast(dtype)));
    EXPECT_FALSE(unused.array().kept_rounded().defined());
    // A copy that is behind is left behind, and rounded again when it is wanted.
    NDArray elements = used.array();
    elements.assign(normal({20, 300}, 5, DType::f32));
    adam.step(0.1);
    EXPECT_TRUE(same(used.array().rounded(dtype), used.array().cast(dtype)));
  }
}

TEST_P(PrecisionTest, WeightsAreRoundedOnceByAnyNumberOfThreads) {
  for (int round = 0; round < 20; ++round) {
    const NDArray weight = normal({64, 64}, 1, DType::f32);
    std::vector<NDArray> copies(4);
    std::vector<std::thread> threads;
    for (NDArray& copy : copies) threads.emplace_back([&] { copy = weight.rounded(DType::bf16); });
    for (std::thread& thread : threads) thread.join();
    for (const NDArray& copy : copies) EXPECT_TRUE(copy.is_same(copies[0]));
  }
}

TEST(Bf16Products, OneDnnAgreesWithFloat32OfRoundedNumbers) {
  if (available_gemms().size() < 2) GTEST_SKIP() << "this build has no oneDNN";
  Generator random(1);
  const Distribution numbers{Distribution::Kind::normal, 0, 1};
  for (const auto& [n, k, m] : {std::tuple{1, 7, 5}, {33, 64, 20}, {70, 3, 1}}) {
    const NDArray a = NDArray::random(numbers, {n, k}, random, DType::bf16),
                  b = NDArray::random(numbers, {k, m}, random, DType::bf16),
                  right = matmul(a.cast(DType::f32), b.cast(DType::f32));
    const NDArray b_turned = b.transpose().compact();  // [m, k], as the transpose of which b is read
    for (const bool turned : {false, true}) {
      const Matrix left(a.view().data, n, k, k, 1),
          columns = turned ? Matrix(b_turned.view().data, k, m, 1, k) : Matrix(b.view().data, k, m, m, 1);
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const NDArray y = NDArray::ones({n, m}, dtype);
        gemm_bf16(left, columns, y.view().data, dtype, m, n, m, k, false);
        EXPECT_LT(relative_distance(y, right), 5e-3);
        gemm_bf16(left, columns, y.view().data, dtype, m, n, m, k, true);
        EXPECT_LT(relative_distance(y, binary(Add{}, right, right)), 1e-2);
      }
    }
  }
}

}  // namespace
}  // namespace needle
