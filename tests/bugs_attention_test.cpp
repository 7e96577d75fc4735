// Faults of other libraries' attention masks (BR-001 to BR-009): what is right for their inputs.
#include "needle/ops/ops.h"
#include "tests/agree.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

class AttentionBugs : public OnDevice {
 protected:
  /// Zero scores for every pair: each query takes the mean of the values it may read.
  Tensor mean_of(const std::vector<double>& values, std::int64_t queries,
                 const AttentionOptions& options) const {
    const auto keys = static_cast<std::int64_t>(values.size());
    return attention(Tensor(NDArray::zeros({1, 1, queries, 2}, exact(), device())),
                     Tensor(NDArray::zeros({1, 1, keys, 2}, exact(), device())),
                     Tensor(array(values, {1, 1, keys, 1})), options);
  }
  /// The weights of one query with these scores.
  NDArray weights_of(const std::vector<double>& scores, const std::vector<std::uint8_t>& allowed,
                     DType dtype) const {
    const auto keys = static_cast<std::int64_t>(scores.size());
    const NDArray unit =
        one_hot(NDArray::arange(keys, DType::i64, device()), keys, dtype).reshape({1, 1, keys, keys});
    AttentionOptions options{.scale = 1};
    options.allowed = mask(allowed, {1, 1, 1, keys});
    return attention(Tensor(array(scores, {1, 1, 1, keys}, dtype)), Tensor(unit), Tensor(unit), options)
        .array()
        .reshape({keys});
  }
};
INSTANTIATE_TEST_SUITE_P(, AttentionBugs, testing::ValuesIn(all_devices()), device_name);

TEST_P(AttentionBugs, BR001_FullyMaskedQueryPoisonsNothing) {
  const std::vector<double> rows{1, 0, 0, 1, 1, 1}, numbers{1, 2, 3, 4, 5, 6};
  AttentionOptions options;
  options.allowed = mask({1, 0, 0, 1, 1, 0, 0, 0, 0}, {1, 1, 3, 3});
  for (const DType dtype : dtypes()) {
    const Tensor q = leaf(rows, {1, 1, 3, 2}, dtype), k = leaf(rows, {1, 1, 3, 2}, dtype),
                 v = leaf(numbers, {1, 1, 3, 2}, dtype);
    const Tensor y = attention(q, k, v, options);
    const Tensor loss = sum(y * Tensor(array(numbers, {1, 1, 3, 2}, dtype)));
    EXPECT_NEAR(loss.item(), 25.376661690573197, 1e-5);
    EXPECT_TRUE(agrees(y.array(), array({1, 2, 2.3395230986533138, 3.3395230986533138, 0, 0}, {1, 1, 3, 2})));
    loss.backward();
    const double d = 2.1895803516315455;
    EXPECT_TRUE(agrees(q.grad(), array({0, 0, -d, d, 0, 0}, {1, 1, 3, 2})));
    EXPECT_TRUE(agrees(k.grad(), array({0, -d, 0, d, 0, 0}, {1, 1, 3, 2})));
    EXPECT_TRUE(agrees(v.grad(), array({1.9907153520200291, 3.3209538026933725, 2.0092846479799706,
                                        2.6790461973066275, 0, 0},
                                       {1, 1, 3, 2})));
  }
}

TEST_P(AttentionBugs, BR003_MaskingSelectsAndDoesNotAdd) {
  for (const DType dtype : dtypes()) {
    EXPECT_TRUE(same(weights_of({0, 0, 2e9}, {1, 1, 0}, dtype), array({0.5, 0.5, 0})));
    EXPECT_TRUE(same(weights_of({1, 2, 3}, {0, 0, 1}, dtype), array({0, 0, 1})));
  }
}

TEST_P(AttentionBugs, BR004_CausalMaskIsAlignedToTheEndOfTheKeys) {
  const std::vector<double> values{1, 2, 4, 8, 16};
  const AttentionOptions causal{.causal = true};
  EXPECT_TRUE(agrees(mean_of(values, 2, causal).array(), array({3.75, 6.2}, {1, 1, 2, 1})));
  EXPECT_TRUE(agrees(mean_of(values, 1, causal).array(), array({6.2}, {1, 1, 1, 1})));
  EXPECT_TRUE(agrees(mean_of({1, 3}, 5, causal).array(), array({0, 0, 0, 1, 2}, {1, 1, 5, 1})));
  EXPECT_TRUE(
      same(allowed_pairs(causal, 2, 5, device()), mask({1, 1, 1, 1, 0, 1, 1, 1, 1, 1}, {1, 1, 2, 5})));
  EXPECT_TRUE(
      same(allowed_pairs(causal, 5, 2, device()), mask({0, 0, 0, 0, 0, 0, 1, 0, 1, 1}, {1, 1, 5, 2})));
}

TEST_P(AttentionBugs, BR006_TrueMeansMayAttend) {
  const NDArray before = mean_of({1, 2, 1000}, 3, {.causal = true}).array();
  EXPECT_TRUE(agrees(before, array({1, 1.5, 1003.0 / 3}, {1, 1, 3, 1})));
  const NDArray after = mean_of({1, 2, -7}, 3, {.causal = true}).array();
  EXPECT_TRUE(same(after.slice(2, 0, 2), before.slice(2, 0, 2)));
  AttentionOptions lower;
  lower.allowed = mask({1, 0, 0, 1, 1, 0, 1, 1, 1}, {1, 1, 3, 3});
  EXPECT_TRUE(same(mean_of({1, 2, 1000}, 3, lower).array(), before));
}

TEST_P(AttentionBugs, BR007_CrossAttentionMaskIsRectangular) {
  const auto zeros = [&](std::int64_t time) {
    return Tensor(NDArray::zeros({2, 1, time, 2}, exact(), device()));
  };
  const Tensor values(array({1, 2, 6, 10, 20, 60}, {2, 1, 3, 1}));
  const NDArray wanted = array({3, 3, 10, 10}, {2, 1, 2, 1}), real = mask({1, 1, 1, 1, 0, 0}, {2, 3});
  AttentionOptions by_key, by_pair, both;
  by_key.key_mask = real;
  by_pair.allowed = real.reshape({2, 1, 1, 3}).broadcast_to({2, 1, 2, 3});
  both.key_mask = real;
  both.allowed = NDArray::full({1, 1, 2, 3}, 1, DType::boolean, device());
  for (const AttentionOptions& options : {by_key, by_pair, both}) {
    EXPECT_TRUE(agrees(attention(zeros(2), zeros(3), values, options).array(), wanted));
  }
  AttentionOptions square;
  square.allowed = NDArray::full({1, 1, 2, 2}, 1, DType::boolean, device());
  EXPECT_TRUE(contains(error_of([&] { attention(zeros(2), zeros(3), values, square); }),
                       {"[2, 1, 2, 3]", "[1, 1, 2, 2]"}));
}

TEST_P(AttentionBugs, BR009_HeadsAreMergedByTime) {
  const Tensor heads(NDArray::arange(8, exact(), device()).reshape({1, 2, 2, 2}));
  const Tensor merged = reshape(permute(heads, {0, 2, 1, 3}), {1, 2, 4});
  EXPECT_TRUE(same(merged.array(), array({0, 1, 4, 5, 2, 3, 6, 7}, {1, 2, 4})));
  EXPECT_TRUE(same(permute(reshape(merged, {1, 2, 2, 2}), {0, 2, 1, 3}).array(), heads.array()));
}

}  // namespace
}  // namespace needle
