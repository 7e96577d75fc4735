// The cases of op_table.h that attention and rotary positions need: every option, alone and with others.
#include "needle/inspect/op_table.h"
#include "needle/ops/ops.h"

namespace needle {

namespace {

/// Sizes of an attention call.
struct Sizes {
  std::int64_t batch = 2, heads = 2, key_heads = 2, queries = 3, keys = 4, width = 3, value_width = 2;
};

using MakeOptions = std::function<AttentionOptions(Device)>;

OpCase attention_case(const std::string& name, const MakeOptions& options, const Sizes& sizes = {},
                      const std::vector<Shape>& bias = {}) {
  const auto [batch, heads, key_heads, queries, keys, width, value_width] = sizes;
  OpCase result{"attention, " + name,
                {{batch, heads, queries, width},
                 {batch, key_heads, keys, width},
                 {batch, key_heads, keys, value_width}},
                [options](const Tensors& x) {
                  return attention(x[0], x[1], x[2], options(x[0].device()), x.size() > 3 ? x[3] : Tensor());
                },
                [options](const Tensors& x) {
                  return attention_definition(x[0], x[1], x[2], options(x[0].device()),
                                              x.size() > 3 ? x[3] : Tensor());
                }};
  result.shapes.insert(result.shapes.end(), bias.begin(), bias.end());
  return result;
}

NDArray mask(const std::vector<std::uint8_t>& values, const Shape& shape, Device device) {
  return NDArray::from(values, shape, device);
}

}  // namespace

std::vector<OpCase> attention_cases() {
  const MakeOptions none = [](Device) { return AttentionOptions{}; };
  const MakeOptions causal = [](Device) { return AttentionOptions{.causal = true}; };
  const auto padded = [](const AttentionOptions& others) {
    return [=](Device device) {
      AttentionOptions options = others;
      options.key_mask = mask({1, 1, 1, 0, 0, 1, 1, 1}, {2, 4}, device);
      return options;
    };
  };
  const auto chosen = [](const AttentionOptions& others) {
    return [=](Device device) {
      AttentionOptions options = others;
      // Query 1 may read nothing.
      options.allowed = mask({1, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1, 0}, {1, 1, 3, 4}, device);
      return options;
    };
  };
  const MakeOptions by_head = [](Device device) {
    AttentionOptions options{.soft_cap = 1.5, .causal = true};
    options.allowed =
        mask({1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0}, {1, 2, 3, 4}, device);
    options.key_mask = mask({0, 1, 1, 1, 1, 1, 1, 0}, {2, 4}, device);
    return options;
  };
  const auto turned = [](RotaryPairs pairs) {
    const auto positions = [](const Tensors& x) {
      return NDArray::from(std::vector<std::int64_t>{0, 1, 2, 5, 3, 1000}, {2, 3}, x[0].device());
    };
    return OpCase{pairs == RotaryPairs::halves ? "rotary, halves" : "rotary, interleaved",
                  {{2, 2, 3, 4}},
                  [=](const Tensors& x) { return rotary(x[0], positions(x), 100, pairs); },
                  [=](const Tensors& x) { return rotary_definition(x[0], positions(x), 100, pairs); }};
  };
  return {
      attention_case("plain", none),
      attention_case("own scale, odd sizes", [](Device) { return AttentionOptions{.scale = 0.9}; },
                     {1, 3, 3, 5, 3, 5, 1}),
      attention_case("causal", causal),
      attention_case("causal, square", causal, {1, 2, 2, 4, 4, 2, 3}),
      attention_case("causal, more queries than keys", causal, {1, 2, 2, 4, 2, 2, 3}),
      attention_case("causal with an offset",
                     [](Device) { return AttentionOptions{.causal = true, .offset = 0}; }),
      attention_case("window", [](Device) { return AttentionOptions{.causal = true, .window = 2}; }),
      attention_case("soft cap", [](Device) { return AttentionOptions{.soft_cap = 0.8}; }),
      attention_case("key mask", padded({})),
      attention_case("key mask and causal, rows without keys", padded({.causal = true, .offset = 0})),
      attention_case("allowed, a row without keys", chosen({})),
      attention_case("allowed and causal", chosen({.causal = true})),
      attention_case("bias of each head", none, {}, {{1, 2, 3, 4}}),
      attention_case("bias of each batch row, shared by heads", causal, {}, {{2, 1, 3, 4}}),
      attention_case("grouped heads", none, {1, 4, 2, 3, 4, 2, 2}),
      attention_case("grouped heads, one key head, causal, window",
                     [](Device) { return AttentionOptions{.causal = true, .window = 3}; },
                     {2, 3, 1, 3, 4, 2, 1}),
      attention_case("one query, one key", causal, {1, 1, 1, 1, 1, 2, 2}),
      attention_case("all options", by_head, {2, 2, 1, 3, 4, 2, 3}, {{1, 2, 3, 4}}),
      {"attention, one tensor as query, key and value",
       {{1, 2, 3, 3}},
       [](const Tensors& x) { return attention(x[0], x[0], x[0], {.causal = true}); },
       [](const Tensors& x) { return attention_definition(x[0], x[0], x[0], {.causal = true}, {}); }},
      {"self_attention",
       {{2, 3, 12}},
       [](const Tensors& x) { return self_attention(x[0], 2, 2); },
       [](const Tensors& x) {
         const Tensors parts = split_heads(x[0], 2, 2);
         return merge_heads(attention_definition(parts[0], parts[1], parts[2], {}, {}));
       }},
      {"self_attention, causal, grouped heads, odd width",
       {{2, 3, 24}},
       [](const Tensors& x) { return self_attention(x[0], 4, 2, {.causal = true}); },
       [](const Tensors& x) {
         const Tensors parts = split_heads(x[0], 4, 2);
         return merge_heads(attention_definition(parts[0], parts[1], parts[2], {.causal = true}, {}));
       }},
      {"attention_weights",
       {{1, 2, 3, 3}, {1, 2, 4, 3}},
       [](const Tensors& x) { return attention_weights(x[0], x[1], {.causal = true}); }},
      turned(RotaryPairs::halves),
      turned(RotaryPairs::interleaved),
  };
}

}  // namespace needle
