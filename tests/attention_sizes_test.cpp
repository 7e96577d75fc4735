// Fused attention against its definition, at sizes and options at which its blocks end in the middle.
#include "needle/ops/attention.h"
#include "tests/agree.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

/// Sizes and options at which tiles, rows and vectors of the kernel end in the middle or not at all.
struct SizeCase {
  const char* name;
  std::int64_t batch, heads, key_heads, queries, keys, width, value_width;
  AttentionOptions options = {};
  bool padded = false, biased = false, chosen = false;
};

const SizeCase kSizes[] = {
    {"one_of_everything", 1, 1, 1, 1, 1, 1, 1},
    {"no_queries", 2, 2, 2, 0, 3, 4, 4},
    {"no_keys", 2, 2, 2, 3, 0, 4, 4},
    {"no_batch", 0, 2, 2, 3, 3, 4, 4},
    {"no_keys_causal_padded", 2, 2, 1, 3, 0, 4, 4, {.causal = true}, true},
    {"width_one", 1, 2, 2, 70, 70, 1, 1, {.causal = true}},
    {"tile_and_one", 1, 2, 2, 65, 65, 32, 32, {.causal = true}},
    {"tile_less_one", 2, 2, 1, 63, 63, 16, 17, {.causal = true}},
    {"one_query_many_keys", 2, 4, 2, 1, 130, 20, 24, {.causal = true}},
    {"many_queries_one_key", 1, 2, 2, 131, 1, 9, 5},
    {"chunk_of_a_cache", 1, 2, 1, 37, 150, 24, 24, {.causal = true}, true},
    {"prime_sizes", 1, 3, 3, 97, 61, 13, 11},
    {"window_across_tiles", 1, 2, 2, 150, 150, 16, 16, {.causal = true, .window = 40}},
    {"window_of_one", 1, 1, 1, 70, 70, 8, 8, {.causal = true, .window = 1}},
    {"window_without_causal", 1, 1, 1, 70, 90, 8, 8, {.window = 7}},
    {"all_options",
     2,
     4,
     2,
     67,
     83,
     12,
     10,
     {.scale = 0.4, .soft_cap = 2, .causal = true, .offset = 20, .window = 50},
     true,
     true,
     true},
    {"one_query_with_all_options",
     2,
     4,
     2,
     1,
     83,
     12,
     10,
     {.scale = 0.4, .soft_cap = 2, .causal = true, .offset = 70, .window = 50},
     true,
     true,
     true},
    {"few_queries_with_all_options",
     2,
     4,
     2,
     8,
     83,
     35,
     33,
     {.scale = 0.4, .soft_cap = 2, .causal = true, .offset = 60, .window = 50},
     true,
     true,
     true},
    {"a_query_more",
     2,
     4,
     2,
     9,
     83,
     35,
     33,
     {.scale = 0.4, .soft_cap = 2, .causal = true, .offset = 60, .window = 50},
     true,
     true,
     true},
    {"offset_behind_all_keys", 1, 1, 1, 5, 8, 4, 4, {.causal = true, .offset = 100, .window = 3}},
    {"offset_before_all_keys", 1, 1, 1, 5, 8, 4, 4, {.causal = true, .offset = -3}},
    {"wide_rows", 1, 1, 1, 20, 33, 200, 150, {.causal = true}, false, true},
    {"width_of_tensor_cores", 1, 2, 1, 5, 7, 64, 64},
    {"bias_alone", 2, 2, 2, 66, 70, 8, 8, {}, false, true},
};

class AttentionSizes : public testing::TestWithParam<std::tuple<Device, SizeCase>> {};

TEST_P(AttentionSizes, FusedEqualsTheDefinition) {
  const Device device = std::get<0>(GetParam());
  const SizeCase& c = std::get<1>(GetParam());
  Generator random(1);
  const auto draw = [&](const Shape& shape) {
    return NDArray::random({Distribution::Kind::normal, 0, 1}, shape, random, DType::f64);
  };
  const auto some = [&](const Shape& shape) {
    return NDArray::random({Distribution::Kind::bernoulli, 0.8, 0}, shape, random, DType::boolean);
  };
  AttentionOptions options = c.options;
  if (c.padded) options.key_mask = some({c.batch, c.keys});
  if (c.chosen) options.allowed = some({1, c.heads, c.queries, c.keys});
  NDArrays inputs{draw({c.batch, c.heads, c.queries, c.width}), draw({c.batch, c.key_heads, c.keys, c.width}),
                  draw({c.batch, c.key_heads, c.keys, c.value_width})};
  if (c.biased) inputs.push_back(draw({c.batch, 1, c.queries, c.keys}));
  const NDArray seed = draw({c.batch, c.heads, c.queries, c.value_width});

  const auto run = [&](bool fused, DType dtype, Device on) {
    AttentionOptions there = options;
    if (c.padded) there.key_mask = options.key_mask.to(on);
    if (c.chosen) there.allowed = options.allowed.to(on);
    Tensors leaves;
    for (const NDArray& x : inputs) leaves.emplace_back(x.cast(DType::f32).cast(dtype).to(on), true);
    const Tensor bias = c.biased ? leaves[3] : Tensor();
    const Tensor y = fused ? attention(leaves[0], leaves[1], leaves[2], there, bias)
                           : attention_definition(leaves[0], leaves[1], leaves[2], there, bias);
    y.backward(seed.cast(DType::f32).cast(dtype).to(on));
    NDArrays results{y.array()};
    for (const Tensor& leaf : leaves) results.push_back(leaf.grad());
    return results;
  };
  const NDArrays right = run(false, DType::f64, cpu());
  for (const DType dtype : computing_dtypes(device)) {
    const NDArrays ours = run(true, dtype, device);
    for (std::size_t i = 0; i < right.size(); ++i) {
      EXPECT_TRUE(agrees(ours[i], right[i], bound_of(dtype), largest_magnitude(seed)))
          << name_of(dtype) << ' ' << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, AttentionSizes,
                         testing::Combine(testing::ValuesIn(all_devices()), testing::ValuesIn(kSizes)),
                         [](const auto& instance) {
                           return std::string(std::get<1>(instance.param).name) + "_" +
                                  test_name(std::get<0>(instance.param).name());
                         });

class AttentionGradients : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(, AttentionGradients, testing::ValuesIn(all_devices()), device_name);

TEST_P(AttentionGradients, EachAloneIsWhatItIsAmongAll) {
  const auto draw = [&](const Shape& shape, DType dtype) {
    return normal(shape, static_cast<std::uint64_t>(shape.count()), dtype);
  };
  const Shape key_shape{1, 1, 7, 64};
  for (const DType dtype : {exact(), DType::bf16}) {
    NDArrays inputs{draw({1, 2, 5, 64}, dtype), draw(key_shape, dtype), draw(key_shape, dtype)};
    if (dtype == exact()) inputs.push_back(draw({1, 2, 5, 7}, dtype));  // a bias
    const NDArray seed = draw({1, 2, 5, 64}, dtype);
    const auto gradients = [&](std::size_t wanted) {
      Tensors leaves;
      for (std::size_t i = 0; i < inputs.size(); ++i)
        leaves.emplace_back(inputs[i], wanted == inputs.size() || wanted == i);
      attention(leaves[0], leaves[1], leaves[2], {}, leaves.size() > 3 ? leaves[3] : Tensor()).backward(seed);
      NDArrays found;
      for (const Tensor& leaf : leaves) found.push_back(leaf.grad());
      return found;
    };
    const NDArrays all = gradients(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i)
      EXPECT_TRUE(same(gradients(i)[i], all[i])) << name_of(dtype) << ' ' << i;
  }
}

}  // namespace
}  // namespace needle
