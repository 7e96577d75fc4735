// Attention and rotary positions: the statements S01 to S12 and S43 to S45, and inputs as projections lay
// them.
#include <cmath>

#include "needle/counters.h"
#include "needle/ops/ops.h"
#include "tests/agree.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

class Attention : public OnDevice {
 protected:
  /// The weights of fused attention, [batch, heads, queries, keys]: its output for the unit vectors as
  /// values.
  NDArray weights(const NDArray& query, const NDArray& key, const AttentionOptions& options,
                  const Tensor& bias = {}) const {
    const std::int64_t keys = key.size(2);
    const NDArray unit = one_hot(NDArray::arange(keys, DType::i64, device()), keys, query.dtype());
    const NDArray values = unit.broadcast_to({key.size(0), key.size(1), keys, keys});
    return attention(Tensor(query), Tensor(key), Tensor(values), options, bias).array();
  }
  /// The same for one query whose scores are given.
  std::vector<double> weights_of(const std::vector<double>& scores, const std::vector<std::uint8_t>& allowed,
                                 DType dtype) const {
    const auto keys = static_cast<std::int64_t>(scores.size());
    const NDArray unit = one_hot(NDArray::arange(keys, DType::i64, device()), keys, dtype);
    AttentionOptions options{.scale = 1};
    if (!allowed.empty()) options.allowed = mask(allowed, {1, 1, 1, keys});
    return weights(array(scores, {1, 1, 1, keys}, dtype), unit.reshape({1, 1, keys, keys}), options)
        .to_vector<double>();
  }
};
INSTANTIATE_TEST_SUITE_P(, Attention, testing::ValuesIn(all_devices()), device_name);

TEST_P(Attention, S01_CausalQueriesReadKeysUpToTheirOwn) {
  const NDArray q = normal({1, 2, 5, 4}, 1), k = normal({1, 2, 5, 4}, 2);
  const NDArray w = weights(q, k, {.causal = true});
  for (std::int64_t i = 0; i < 5; ++i) {
    for (std::int64_t j = 0; j < 5; ++j) {
      if (j <= i)
        EXPECT_GT(w.item({0, 1, i, j}), 0) << i << ' ' << j;
      else
        EXPECT_EQ(w.item({0, 1, i, j}), 0) << i << ' ' << j;
    }
  }
  // The mask enters before the softmax: what is left sums to 1.
  EXPECT_TRUE(agrees(reduce(Sum{}, w, {-1}), NDArray::ones({1, 2, 5}, exact(), device())));
}

TEST_P(Attention, S02_MaskBeforeTheSoftmax) {
  const std::vector<double> w = weights_of({std::log(2.0), 0, 0}, {1, 1, 0}, exact());
  EXPECT_NEAR(w[0], 2.0 / 3, within(1e-12));
  EXPECT_NEAR(w[1], 1.0 / 3, within(1e-12));
  EXPECT_EQ(w[2], 0);
  EXPECT_NEAR(w[0] * 2 + w[1] * 0 + w[2] * 4, 4.0 / 3, within(1e-12));
  EXPECT_NEAR(w[0] * 0 + w[1] * 2 + w[2] * 4, 2.0 / 3, within(1e-12));
  EXPECT_GT(std::abs(w[0] - 0.5), 0.1);  // as zeroing after the softmax would give, with a sum of 3/4
}

TEST_P(Attention, S03_WorkedExample) {
  const std::vector<double> scores{0, std::log(2.0), std::log(4.0)}, values{2, 7, 99};
  const auto output = [&](const std::vector<std::uint8_t>& allowed) {
    const std::vector<double> w = weights_of(scores, allowed, exact());
    return w[0] * values[0] + w[1] * values[1] + w[2] * values[2];
  };
  EXPECT_NEAR(output({}), 412.0 / 7, within(1e-11));
  EXPECT_NEAR(output({1, 1, 0}), 16.0 / 3, within(1e-11));
  EXPECT_GT(std::abs(output({1, 1, 0}) - 16.0 / 7), 1);
}

TEST_P(Attention, S04_MaskedWeightsAndTheirGradientsAreExactlyZero) {
  for (const DType dtype : dtypes()) {
    for (const double masked : {-1e30, -5.0, 0.0, 700.0, 1e30}) {
      const std::vector<double> w = weights_of({1, masked, 2, masked}, {1, 0, 1, 0}, dtype);
      EXPECT_EQ(w[1], 0);
      EXPECT_EQ(w[3], 0);
      EXPECT_NEAR(w[0], 1 / (1 + std::exp(1.0)), within(1e-6));
    }
    const Tensor q(normal({1, 1, 2, 4}, 1, dtype), true), k(normal({1, 1, 3, 4}, 2, dtype), true),
        v(normal({1, 1, 3, 2}, 3, dtype), true);
    AttentionOptions options;
    options.allowed = mask({1, 0, 1, 1, 0, 1}, {1, 1, 2, 3});
    for (const bool recorded : {false, true}) {
      const Tensor y = attention(q, k, v, options);
      const Tensor seed(normal({1, 1, 2, 2}, 4, dtype));
      for (const Tensor& g : gradients(y, {k, v}, seed, recorded)) {
        for (std::int64_t c = 0; c < g.size(-1); ++c) EXPECT_EQ(g.array().item({0, 0, 1, c}), 0);
      }
    }
  }
}

TEST_P(Attention, S04_WhatStandsAtMaskedKeysDoesNotMatter) {
  for (const double odd : {std::nan(""), HUGE_VAL}) {
    NDArray k = normal({1, 1, 4, 4}, 1, DType::f32).copy(), v = normal({1, 1, 4, 4}, 2, DType::f32).copy();
    const NDArray q = normal({1, 1, 4, 4}, 3, DType::f32);
    AttentionOptions options;
    options.key_mask = mask({1, 1, 0, 1}, {1, 4});
    const NDArray before = attention(Tensor(q), Tensor(k), Tensor(v), options).array().copy();
    k.slice(2, 2, 3).assign(NDArray::scalar(odd, DType::f32, device()));
    EXPECT_TRUE(same(attention(Tensor(q), Tensor(k), Tensor(v), options).array(), before)) << odd;
  }
}

TEST_P(Attention, S05_QueryWithoutKeysGivesZerosAndStrictNamesIt) {
  AttentionOptions options{.causal = true, .offset = 0};
  options.key_mask = mask({1, 1, 1, 0, 0, 1}, {2, 3});
  const Tensor q(normal({2, 2, 3, 4}, 1), true), k(normal({2, 2, 3, 4}, 2), true),
      v(normal({2, 2, 3, 5}, 3), true);
  for (const bool recorded : {false, true}) {
    const Tensor y = attention(q, k, v, options);
    const Tensors g = gradients(y, {q, k, v}, Tensor(normal({2, 2, 3, 5}, 4)), recorded);
    EXPECT_EQ(largest_magnitude(y.array()[1].slice(1, 0, 2)), 0);
    EXPECT_EQ(largest_magnitude(g[0].array()[1].slice(1, 0, 2)), 0);
    EXPECT_GT(largest_magnitude(y.array()[1].slice(1, 2, 3)), 0);
    for (const Tensor& gradient : g) {
      for (const double x : gradient.array().to_vector<double>()) EXPECT_TRUE(std::isfinite(x));
    }
  }
  options.strict = true;
  EXPECT_TRUE(contains(error_of([&] { attention(q, k, v, options); }), {"batch row 1", "query 0"}));
  options.query_mask = mask({1, 1, 1, 0, 1, 1}, {2, 3});
  EXPECT_TRUE(contains(error_of([&] { attention(q, k, v, options); }), {"batch row 1", "query 1"}));
  options.query_mask = mask({1, 1, 1, 0, 0, 1}, {2, 3});
  EXPECT_NO_THROW(attention(q, k, v, options));
}

TEST_P(Attention, S07_MasksAndBiasesBroadcast) {
  const std::int64_t batch = 2, heads = 3, queries = 4, keys = 5;
  const Shape full{batch, heads, queries, keys};
  const NDArray q = normal({batch, heads, queries, 4}, 1), k = normal({batch, heads, keys, 4}, 2),
                v = normal({batch, heads, keys, 2}, 3), seed = normal({batch, heads, queries, 2}, 4),
                key_mask = mask({1, 1, 1, 1, 0, 0, 1, 1, 1, 1}, {2, 5});
  const std::vector<Shape> shapes{
      {1, 1, queries, keys}, {batch, 1, queries, keys}, {1, heads, queries, keys}, full};
  for (const Shape& shape : shapes) {
    Generator random(5);
    const NDArray allowed =
        NDArray::random({Distribution::Kind::bernoulli, 0.7, 0}, shape, random, DType::boolean, device());
    const Tensor bias(normal(shape, 6), true), full_bias(bias.array().broadcast_to(full).copy(), true);
    for (const bool causal : {false, true}) {
      AttentionOptions small{.causal = causal}, large{.causal = causal};
      small.allowed = allowed;
      large.allowed = allowed.broadcast_to(full).copy();
      small.key_mask = large.key_mask = key_mask;
      const Tensor y = attention(Tensor(q), Tensor(k), Tensor(v), small, bias);
      const Tensor wide = attention(Tensor(q), Tensor(k), Tensor(v), large, full_bias);
      EXPECT_TRUE(same(y.array(), wide.array()));
      const NDArray g = gradients(y, {bias}, Tensor(seed))[0].array();
      const NDArray g_full = gradients(wide, {full_bias}, Tensor(seed))[0].array();
      EXPECT_TRUE(agrees(g, sum_to(g_full, shape)));
    }
  }
  // A bias of a large negative number is near to a mask, but the mask is exact.
  const std::vector<double> w = weights_of({1, 2}, {1, 0}, DType::f32);
  EXPECT_EQ(w[1], 0);
}

TEST_P(Attention, S07_WrongShapesAndTypesAreRefused) {
  const Tensor q(normal({2, 2, 3, 4}, 1)), k(normal({2, 2, 5, 4}, 2));
  const auto with = [&](const NDArray& allowed, const NDArray& key_mask, const Tensor& bias) {
    AttentionOptions options;
    options.allowed = allowed;
    options.key_mask = key_mask;
    return error_of([&] { attention(q, k, k, options, bias); });
  };
  const auto all = [&](const Shape& shape) { return NDArray::full(shape, 1, DType::boolean, device()); };
  EXPECT_TRUE(contains(with(all({2, 2, 3, 3}), {}, {}), {"attention", "[2, 2, 3, 5]", "[2, 2, 3, 3]"}));
  EXPECT_TRUE(contains(with(all({3, 5}), {}, {}), {"[2, 2, 3, 5]", "[3, 5]"}));
  EXPECT_TRUE(contains(with({}, all({2, 3}), {}), {"key mask", "[2, 5]", "[2, 3]"}));
  EXPECT_TRUE(contains(with({}, {}, Tensor(normal({3, 2, 3, 5}, 1))), {"bias", "[3, 2, 3, 5]"}));
  EXPECT_TRUE(contains(with(normal({1, 1, 3, 5}, 1), {}, {}), {"bool"}));
  EXPECT_TRUE(contains(error_of([&] { attention(q, q, k); }), {"attention", "[2, 2, 3, 4]", "[2, 2, 5, 4]"}));
  EXPECT_TRUE(contains(error_of([&] {
                         attention(q, Tensor(normal({2, 2, 5, 4}, 1, DType::f16)), k);
                       }),
                       {std::string(name_of(exact())), "f16"}));
  EXPECT_TRUE(contains(error_of([&] { attention(q, k, k, {.window = -1}); }), {"window", "-1"}));
}

TEST_P(Attention, S09_OutputsAreConvexCombinationsOfValues) {
  const NDArray q = normal({2, 2, 9, 8}, 1, DType::f32), k = normal({2, 2, 11, 8}, 2, DType::f32),
                v = normal({2, 2, 11, 3}, 3, DType::f32);
  const NDArray w = weights(q, k, {});
  EXPECT_TRUE(agrees(reduce(Sum{}, w, {-1}), NDArray::ones({2, 2, 9}, DType::f32, device())));
  for (const double x : w.to_vector<double>()) EXPECT_TRUE(x > 0 && x < 1);
  const NDArray y = attention(Tensor(q), Tensor(k), Tensor(v)).array(), low = reduce(Min{}, v, {2}, true),
                high = reduce(Max{}, v, {2}, true);
  for (const bool within : binary(LessEqual{}, low, y).to_vector<bool>()) EXPECT_TRUE(within);
  for (const bool within : binary(GreaterEqual{}, high, y).to_vector<bool>()) EXPECT_TRUE(within);
}

TEST_P(Attention, S10_ScalingByTheRootOfTheWidthKeepsTheVarianceOne) {
  for (const std::int64_t width : {4, 64, 256}) {
    const NDArray q = normal({20000, width}, 1), k = normal({20000, width}, 2);
    const Tensor scores = sum(Tensor(q) * Tensor(k), {-1});
    EXPECT_NEAR(variance(scores).item() / static_cast<double>(width), 1, 0.05);
    EXPECT_NEAR(variance(scores / std::sqrt(static_cast<double>(width))).item(), 1, 0.05);
  }
  // That factor is attention's default.
  const Tensor x(normal({1, 1, 3, 16}, 3));
  EXPECT_TRUE(same(attention(x, x, x).array(), attention(x, x, x, {.scale = 0.25}).array()));
}

TEST_P(Attention, S11_PermutedRowsGivePermutedOutputsUnlessPositionsAreFixed) {
  const NDArray x = normal({5, 4}, 1), places = normal({5, 4}, 2), order = ids({3, 0, 4, 1, 2}, {5});
  const auto attend = [](const Tensor& rows) {
    const Tensor four = reshape(rows, {1, 1, 5, 4});
    return reshape(attention(four, four, four), {5, 4});
  };
  const auto permuted = [&](const Tensor& rows) { return gather_rows(rows, order); };
  EXPECT_TRUE(agrees(attend(permuted(Tensor(x))).array(), permuted(attend(Tensor(x))).array()));
  const Tensor placed = attend(permuted(Tensor(x)) + Tensor(places));
  const Tensor after = permuted(attend(Tensor(x) + Tensor(places)));
  EXPECT_GT(relative_error(placed.array(), after.array()), 0.01);
}

TEST_P(Attention, S12_KeyHeadsServeEqualRunsOfHeads) {
  const NDArray q = normal({2, 6, 3, 4}, 1), k = normal({2, 2, 5, 4}, 2), v = normal({2, 2, 5, 7}, 3);
  const auto repeated = [](const NDArray& x) {
    const Shape five{x.size(0), 2, 3, x.size(2), x.size(3)};
    return Tensor(x.unsqueeze(2).broadcast_to(five).reshape({x.size(0), 6, x.size(2), x.size(3)}));
  };
  const Tensor y = attention(Tensor(q), Tensor(k), Tensor(v), {.causal = true});
  EXPECT_EQ(y.shape(), (Shape{2, 6, 3, 7}));
  EXPECT_TRUE(agrees(y.array(), attention(Tensor(q), repeated(k), repeated(v), {.causal = true}).array()));
  EXPECT_TRUE(contains(error_of([&] {
                         attention(Tensor(normal({2, 3, 3, 4}, 1)), Tensor(k), Tensor(v));
                       }),
                       {"multiple", "[2, 3, 3, 4]", "[2, 2, 5, 4]"}));
}

TEST_P(Attention, S43_WindowOfWPositions) {
  const std::int64_t queries = 3, keys = 9, window = 4, offset = 5;
  const NDArray w = weights(normal({1, 1, queries, 4}, 1), normal({1, 1, keys, 4}, 2),
                            {.causal = true, .offset = offset, .window = window});
  for (std::int64_t t = 0; t < queries; ++t) {
    for (std::int64_t j = 0; j < keys; ++j) {
      const bool read = j <= offset + t && j > offset + t - window;
      EXPECT_EQ(w.item({0, 0, t, j}) > 0, read) << t << ' ' << j;
    }
  }
  // The cost of a fixed window grows linearly with the time.
  const auto operations = [&](std::int64_t time) {
    OperationCounter counter;
    const ObserverScope scope(&counter);
    const Tensor x(normal({1, 1, time, 4}, 1));
    attention(x, x, x, {.causal = true, .window = 16});
    return counter.forward("attention");
  };
  EXPECT_EQ(operations(256) - operations(128), 16.0 * (4 + 4) * 2 * 128);
}

TEST_P(Attention, S44_CapThenBiasThenMaskThenSoftmax) {
  const double cap = 1.5;
  const NDArray k = one_hot(NDArray::arange(3, DType::i64, device()), 3, exact()).reshape({1, 1, 3, 3});
  const std::vector<double> scores{40, -3, 2}, biases{0.5, 2, 7};
  AttentionOptions options{.scale = 1, .soft_cap = cap};
  options.allowed = mask({1, 1, 0}, {1, 1, 1, 3});
  const NDArray w = weights(array(scores, {1, 1, 1, 3}), k, options, Tensor(array(biases, {1, 1, 1, 3})));
  const double first = std::exp(cap * std::tanh(scores[0] / cap) + biases[0]),
               second = std::exp(cap * std::tanh(scores[1] / cap) + biases[1]);
  EXPECT_NEAR(w.item({0, 0, 0, 0}), first / (first + second), within(1e-12));
  EXPECT_NEAR(w.item({0, 0, 0, 1}), second / (first + second), within(1e-12));
  EXPECT_EQ(w.item({0, 0, 0, 2}), 0);
}

TEST_P(Attention, S45_RotaryTurnsPairsByPositionOverBase) {
  const double base = 10000;
  const NDArray x = normal({1, 1, 2, 6}, 1);
  const NDArray positions = ids({3, 250}, {1, 2});
  for (const RotaryPairs pairs : {RotaryPairs::halves, RotaryPairs::interleaved}) {
    const NDArray y = rotary(Tensor(x), positions, base, pairs).array();
    for (std::int64_t t = 0; t < 2; ++t) {
      for (std::int64_t r = 0; r < 3; ++r) {
        const std::int64_t a = pairs == RotaryPairs::halves ? r : 2 * r,
                           b = pairs == RotaryPairs::halves ? r + 3 : 2 * r + 1;
        const double angle = (t == 0 ? 3 : 250) / std::pow(base, 2.0 * static_cast<double>(r) / 6),
                     xa = x.item({0, 0, t, a}), xb = x.item({0, 0, t, b});
        EXPECT_NEAR(y.item({0, 0, t, a}), xa * std::cos(angle) - xb * std::sin(angle), within(1e-12));
        EXPECT_NEAR(y.item({0, 0, t, b}), xa * std::sin(angle) + xb * std::cos(angle), within(1e-12));
      }
    }
  }
  EXPECT_TRUE(contains(error_of([&] {
                         rotary(Tensor(normal({1, 1, 2, 5}, 1)), positions);
                       }),
                       {"rotary", "even", "[1, 1, 2, 5]"}));
  EXPECT_TRUE(contains(error_of([&] { rotary(Tensor(x), ids({1, 2, 3}, {1, 3})); }), {"[1, 2]", "[1, 3]"}));
}

TEST_P(Attention, S45_ScoresDependOnTheDifferenceOfPositionsAlone) {
  const NDArray q = normal({1, 2, 4, 8}, 1), k = normal({1, 2, 4, 8}, 2),
                positions = ids({0, 1, 2, 3}, {1, 4});
  const auto scores = [&](std::int64_t shift, RotaryPairs pairs) {
    const NDArray moved =
        binary(Add{}, positions, NDArray::full({}, static_cast<double>(shift), DType::i64, device()));
    return matmul(rotary(Tensor(q), moved, 10000, pairs), transpose(rotary(Tensor(k), moved, 10000, pairs)))
        .array();
  };
  for (const RotaryPairs pairs : {RotaryPairs::halves, RotaryPairs::interleaved}) {
    for (const std::int64_t shift : {1, 1000, 100000})
      EXPECT_TRUE(agrees(scores(shift, pairs), scores(0, pairs)));
  }
}

TEST_P(Attention, ReadsPartsOfAFusedProjectionWithoutCopies) {
  const std::int64_t batch = 2, time = 7, heads = 3, width = 4;
  const auto attend = [&](const Tensor& all, bool compact) {
    Tensors parts = split(reshape(all, {batch, time, 3, heads, width}), {1, 1, 1}, 2);
    for (Tensor& part : parts) part = permute(squeeze(part, 2), {0, 2, 1, 3});
    if (compact) {
      for (Tensor& part : parts) part = part + 0.0;
    }
    return attention(parts[0], parts[1], parts[2], {.causal = true});
  };
  const Tensor all(normal({batch, time, 3 * heads * width}, 1), true), copy(all.array(), true);
  const NDArray seed = normal({batch, heads, time, width}, 2);
  const Tensor y = attend(all, false), right = attend(copy, true);
  EXPECT_TRUE(same(y.array(), right.array()));
  y.backward(seed);
  right.backward(seed);
  EXPECT_TRUE(same(all.grad(), copy.grad()));
}

TEST_P(Attention, S04_WhatIsNotANumberStaysBehindTheMask) {
  NDArray value = normal({1, 1, 70, 3}, 3), key = normal({1, 1, 70, 4}, 2);
  const NDArray query = normal({1, 1, 70, 4}, 1);
  const auto attend = [&](const AttentionOptions& options) {
    return attention(Tensor(query), Tensor(key), Tensor(value), options).array().slice(2, 0, 66);
  };
  for (const AttentionOptions& options : {AttentionOptions{.causal = true}, AttentionOptions{.window = 5}}) {
    const NDArray before = attend(options);
    NDArray last_value = value.copy(), last_key = key.copy();
    for (NDArray* array : {&last_value, &last_key}) {
      NDArray end = array->slice(2, 66, 70);
      end.assign(NDArray::full(end.shape(), std::numeric_limits<double>::infinity(), exact(), device()));
      std::swap(*array, array == &last_value ? value : key);
    }
    EXPECT_TRUE(agrees(attend(options), before));
    std::swap(value, last_value);
    std::swap(key, last_key);
  }
}

TEST_P(Attention, S04_WhatIsNotANumberStaysBehindTheMaskInGradients) {
  AttentionOptions options;
  options.key_mask = mask({1, 1, 1, 1, 0}, {1, 5});
  const NDArray query = normal({1, 1, 3, 4}, 1), key = normal({1, 1, 5, 4}, 2),
                seed = normal({1, 1, 3, 3}, 4);
  const auto gradients_at = [&](double hidden) {
    NDArray value = normal({1, 1, 5, 3}, 3);
    value.slice(2, 4, 5).assign(NDArray::full({1, 1, 1, 3}, hidden, exact(), device()));
    const Tensors leaves{Tensor(query, true), Tensor(key, true), Tensor(value, true)};
    attention(leaves[0], leaves[1], leaves[2], options).backward(seed);
    return NDArrays{leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
  };
  const NDArrays right = gradients_at(0), ours = gradients_at(std::numeric_limits<double>::quiet_NaN());
  for (std::size_t i = 0; i < right.size(); ++i) EXPECT_TRUE(agrees(ours[i], right[i])) << i;
}

}  // namespace
}  // namespace needle
