// Attention of bf16 and f16 arrays at the widths for which GPUs have tensor-core kernels, against float64 on
// the CPU.
#include <cmath>
#include <functional>

#include "needle/ops/ops.h"
#include "tests/agree.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

struct HalfCase {
  const char* name;
  std::int64_t batch, heads, key_heads, queries, keys;
  AttentionOptions options = {};
  bool padded = false;
};

// Tiles have 128 queries and 64 keys in the forward pass, 64 or 128 and 32 in the gradient.
const HalfCase kCases[] = {
    {"one_of_everything", 1, 1, 1, 1, 1},
    {"rows_of_a_product", 2, 2, 2, 16, 16, {.causal = true}},
    {"tile_less_one", 1, 2, 1, 63, 63, {.causal = true}},
    {"tile_and_one", 1, 2, 2, 65, 65},
    {"three_blocks", 1, 1, 1, 260, 130, {.offset = -100}},
    {"chunk_of_a_cache", 2, 4, 2, 37, 150, {.causal = true}, true},
    {"one_query_many_keys", 1, 4, 1, 1, 200, {.causal = true}, true},
    {"some_queries_without_keys", 2, 2, 2, 70, 90, {.causal = true, .offset = -20}, true},
    {"window_across_tiles", 1, 2, 1, 150, 150, {.causal = true, .window = 40}},
    {"window_without_causal", 1, 1, 1, 70, 90, {.scale = -0.2, .window = 7}},
    {"offset_behind_all_keys", 1, 1, 1, 5, 8, {.causal = true, .offset = 100, .window = 3}},
    {"no_keys", 1, 2, 2, 3, 0},
    {"no_queries", 1, 2, 2, 0, 3},
    {"no_batch", 0, 2, 2, 3, 3},
};

class AttentionHalf : public testing::TestWithParam<std::tuple<Device, HalfCase>> {
 protected:
  static NDArray draw(const Shape& shape, std::uint64_t seed) {
    Generator random(seed);
    return NDArray::random({Distribution::Kind::normal, 0, 1}, shape, random, DType::f32, cpu());
  }
};

/// Output and gradients on `device`, of inputs rounded to `rounded` and then converted to `dtype`.
template <class Function>
NDArrays run(const NDArrays& inputs, const NDArray& seed, DType rounded, DType dtype, Device device,
             const Function& function) {
  Tensors leaves;
  for (const NDArray& x : inputs) leaves.emplace_back(x.cast(rounded).cast(dtype).to(device), true);
  const Tensor y = function(leaves);
  y.backward(seed.cast(rounded).cast(dtype).to(device));
  NDArrays results{y.array()};
  for (const Tensor& leaf : leaves) results.push_back(leaf.grad());
  return results;
}

TEST_P(AttentionHalf, EqualsTheDefinition) {
  const auto& [device, c] = GetParam();
  for (const std::int64_t width : {64, 128}) {
    const NDArray seed = draw({c.batch, c.heads, c.queries, width}, 1);
    const NDArrays inputs{draw({c.batch, c.heads, c.queries, width}, 2),
                          draw({c.batch, c.key_heads, c.keys, width}, 3),
                          draw({c.batch, c.key_heads, c.keys, width}, 4)};
    NDArray mask;
    if (c.padded) {
      Generator random(5);
      mask = NDArray::random({Distribution::Kind::bernoulli, 0.7, 0}, {c.batch, c.keys}, random,
                             DType::boolean, cpu());
    }
    // What stands behind the mask is no number.
    NDArrays spoilt = inputs;
    for (std::size_t i = 1; c.padded && i < 3; ++i) {
      const NDArray real = mask.reshape({c.batch, 1, c.keys, 1}).broadcast_to(inputs[i].shape());
      const NDArray odd = NDArray::full({1}, i == 1 ? std::nan("") : HUGE_VAL);
      spoilt[i] = select(real, inputs[i], odd.broadcast_to(inputs[i].shape()));
    }
    for (const DType dtype : {DType::bf16, DType::f16}) {
      const auto attend = [&, &of = c](const Tensors& x) {
        AttentionOptions options = of.options;
        if (mask.defined()) options.key_mask = mask.to(x[0].device());
        return attention(x[0], x[1], x[2], options);
      };
      const NDArrays right = run(inputs, seed, dtype, DType::f64, cpu(), attend),
                     ours = run(spoilt, seed, dtype, dtype, device, attend);
      for (std::size_t i = 0; i < right.size(); ++i)
        EXPECT_TRUE(agrees(ours[i], right[i], bound_of(dtype), i == 0 ? 0 : largest_magnitude(seed)))
            << name_of(dtype) << ' ' << width << ' ' << i;
      for (std::size_t i = 2; c.padded && i < 4; ++i) {  // exact zeros behind the mask
        const NDArray real = mask.reshape({c.batch, 1, c.keys, 1}).broadcast_to(ours[i].shape());
        const NDArray behind =
            select(real, NDArray::zeros({}).broadcast_to(real.shape()), ours[i].to(cpu()).cast(DType::f32));
        EXPECT_EQ(largest_magnitude(behind), 0) << name_of(dtype) << ' ' << width << ' ' << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, AttentionHalf,
                         testing::Combine(testing::ValuesIn(all_devices()), testing::ValuesIn(kCases)),
                         [](const auto& instance) {
                           return std::string(std::get<1>(instance.param).name) + "_" +
                                  test_name(std::get<0>(instance.param).name());
                         });

class PackedAttentionHalf : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(, PackedAttentionHalf, testing::ValuesIn(all_devices()), device_name);

TEST_P(PackedAttentionHalf, EqualsTheDefinition) {
  const std::int64_t heads = 4, key_heads = 2, width = 64, time = 70;
  Generator random(1);
  const auto draw = [&](const Shape& shape) {
    return NDArray::random({Distribution::Kind::normal, 0, 1}, shape, random, DType::f32, cpu());
  };
  const NDArrays inputs{draw({2, time, (heads + 2 * key_heads) * width})};
  const NDArray seed = draw({2, time, heads * width});
  const auto attend = [&](const Tensors& x) {
    return self_attention(x[0], heads, key_heads, {.causal = true});
  };
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const NDArrays right = run(inputs, seed, dtype, DType::f64, cpu(), attend),
                   ours = run(inputs, seed, dtype, dtype, device(), attend);
    for (std::size_t i = 0; i < right.size(); ++i)
      EXPECT_TRUE(agrees(ours[i], right[i], bound_of(dtype))) << name_of(dtype) << ' ' << i;
  }
}

// Calls of that width that have no tensor-core kernel.
TEST_P(PackedAttentionHalf, OtherCallsOfTheWidthEqualTheDefinition) {
  const std::int64_t queries = 5, keys = 70;
  const auto draw = [&](const Shape& shape) { return normal(shape, 1, DType::f32).to(cpu()); };
  const NDArray seed = draw({1, 2, queries, 64});
  const NDArrays inputs{draw({1, 2, queries, 72}), draw({1, 1, keys, 72}), draw({1, 1, keys, 72})};
  const auto part = [](const Tensor& x, std::int64_t first) { return slice(x, 3, first, first + 64); };
  using Attend = std::function<Tensor(const Tensors&)>;
  const auto with = [&](const AttentionOptions& options, bool biased = false) -> Attend {
    return [&, options, biased](const Tensors& x) {
      AttentionOptions there = options;
      if (options.allowed.defined()) there.allowed = options.allowed.to(x[0].device());
      const NDArray bias =
          draw({1, 2, queries, keys}).cast(x[0].dtype() == DType::f64 ? DType::f64 : DType::f32);
      return attention(part(x[0], 0), part(x[1], 0), part(x[2], 0), there,
                       biased ? Tensor(bias.to(x[0].device())) : Tensor());
    };
  };
  AttentionOptions chosen;
  chosen.allowed = binary(Less{}, draw({1, 2, queries, keys}), NDArray::zeros({}));
  const std::pair<const char*, Attend> calls[] = {
      {"soft cap", with({.soft_cap = 1})},
      {"allowed", with(chosen)},
      {"bias", with({}, true)},
      {"narrow values",
       [&](const Tensors& x) {
         const Tensor y = attention(part(x[0], 0), part(x[1], 0), slice(x[2], 3, 0, 32));
         return concatenate({y, y}, 3);
       }},
      {"rows at odd places",
       [&](const Tensors& x) { return attention(part(x[0], 1), part(x[1], 1), part(x[2], 1)); }}};
  for (const auto& [name, attend] : calls) {
    const NDArrays right = run(inputs, seed, DType::bf16, DType::f64, cpu(), attend),
                   ours = run(inputs, seed, DType::bf16, DType::bf16, device(), attend);
    for (std::size_t i = 0; i < right.size(); ++i)
      EXPECT_TRUE(agrees(ours[i], right[i], bound_of(DType::bf16), i == 0 ? 0 : largest_magnitude(seed)))
          << name << ' ' << i;
  }
}

}  // namespace
}  // namespace needle
