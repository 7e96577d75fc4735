#include "needle/nn/attention.h"

#include <cmath>

#include "needle/precision.h"

namespace needle {

BlockConfig BlockConfig::resolved() const {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  for (const std::int64_t size : {width, heads, key_value_heads, ffn, window})
    require(size < kMost, "model: a size of ", size, " is too large");
  BlockConfig full = *this;
  if (full.key_value_heads == 0) full.key_value_heads = heads;
  if (full.ffn == 0) full.ffn = 4 * width;
  const auto positive = [](const char* name, std::int64_t value) {
    require(value > 0, "model: ", name, " must be positive, got ", value);
  };
  positive("width", width);
  positive("heads", heads);
  positive("key-value-heads", full.key_value_heads);
  positive("ffn", full.ffn);
  require(width % heads == 0, "model: width ", width, " is not a multiple of ", heads, " heads");
  require(heads % full.key_value_heads == 0, "model: ", heads, " heads are not a multiple of ",
          full.key_value_heads, " key/value heads");
  require(positions != Positions::rotary || (width / heads) % 2 == 0,
          "model: rotary positions want an even head width, got ", width / heads);
  require(positions != Positions::sinusoidal || width % 2 == 0,
          "model: sinusoidal positions want an even width, got ", width);
  require(window >= 0, "model: the window must not be negative, got ", window);
  const auto finite = [](const char* name, double value) {
    require(std::isfinite(value), "model: ", name, " must be finite, got ", value);
  };
  finite("the soft cap", soft_cap);
  finite("norm epsilon", norm_epsilon);
  finite("the rotary base", rotary_base);
  require(soft_cap >= 0, "model: the soft cap must not be negative, got ", soft_cap);
  require(dropout >= 0 && dropout <= 1, "model: dropout must be in [0, 1], got ", dropout);
  require(norm_epsilon > 0, "model: norm epsilon must be positive, got ", norm_epsilon);
  require(rotary_base > 1, "model: the rotary base must be above 1, got ", rotary_base);
  return full;
}

std::int64_t BlockConfig::norm_parameter_count() const {
  return width * (norm == NormKind::layer && bias ? 2 : 1);
}

std::int64_t BlockConfig::parameter_count() const {
  const BlockConfig full = resolved();
  const std::int64_t key_columns = 2 * full.key_value_heads * (width / heads);
  const auto map = [&](std::int64_t in, std::int64_t out) { return in * out + (bias ? out : 0); };
  const std::int64_t inner =
      (activation == Activation::gated ? 2 : 1) * map(width, full.ffn) + map(full.ffn, width);
  const std::int64_t attention = map(width, width + key_columns) + map(width, width);
  return (cross ? 2 : 1) * (norm_parameter_count() + attention) + norm_parameter_count() + inner;
}

MultiHeadAttention::MultiHeadAttention(const BlockConfig& block, const Init& init)
    : config(block.resolved()),
      qkv(config.width, config.width / config.heads * (config.heads + 2 * config.key_value_heads),
          config.bias, init),
      out(config.width, config.width, config.bias, init, true) {}

Tensor MultiHeadAttention::forward(const Tensor& x, const PassPositions& positions, const Pass& pass,
                                   int layer, const Tensor& residual, std::optional<DType> result) const {
  const Scope scope(*this);
  const bool in_one = config.positions != Positions::rotary && !pass.past;
  // Rotations and caches are the weights' float32, whatever the precision of products.
  const Tensor packed =
      qkv.forward(x, Epilogue::none, {}, in_one ? std::nullopt : std::optional(qkv.dtype()));
  AttentionOptions options;
  options.causal = config.causal;
  options.window = config.window;
  options.soft_cap = config.soft_cap;
  options.strict = config.strict;
  options.query_mask = positions.real;
  options.key_mask = pass.past ? pass.past->key_mask() : positions.real;
  options.offset = pass.past ? pass.past->past() : 0;
  if (config.window > 0 && options.key_mask.defined()) {
    options.allowed = window_pairs(options.key_mask, x.size(1), config.window);
    if (options.allowed.defined()) options.window = 0;
  }
  if (in_one) {
    const Tensor mixed = self_attention(packed, config.heads, config.key_value_heads, options);
    return out.forward(mixed, Epilogue::none, residual, result);
  }
  Tensors parts = split_heads(packed, config.heads, config.key_value_heads);
  if (config.positions == Positions::rotary) {
    for (const std::size_t i : {0, 1}) parts[i] = rotary(parts[i], positions.ids, config.rotary_base);
  }
  if (pass.past) {
    require(
        !grad_enabled() || !packed.requires_grad(),
        "attention: a cache holds numbers without their past; compute under NoGrad, or without the cache");
    const LayerCache all = pass.past->extend(layer, parts[1].array(), parts[2].array());
    parts[1] = Tensor(all.key);
    parts[2] = Tensor(all.value);
  }
  const Tensor mixed = merge_heads(attention(parts[0], parts[1], parts[2], options));
  return out.forward(mixed, Epilogue::none, residual, result);
}

void MultiHeadAttention::list(Parts& parts) {
  parts("qkv", qkv);
  parts("out", out);
}

CrossAttention::CrossAttention(const BlockConfig& block, const Init& init)
    : config(block.resolved()),
      query(config.width, config.width, config.bias, init),
      key(config.width, config.width / config.heads * config.key_value_heads, config.bias, init),
      value(config.width, config.width / config.heads * config.key_value_heads, config.bias, init),
      out(config.width, config.width, config.bias, init, true) {}

Tensor CrossAttention::forward(const Tensor& x, const PassPositions& positions, const Pass& pass, int layer,
                               const Tensor& residual, std::optional<DType> result) const {
  const Scope scope(*this);
  // Caches are the weights' float32, whatever the precision of products.
  const std::optional<DType> type = pass.past ? std::optional(query.dtype()) : std::nullopt;
  const auto mapped = [&](const Linear& map, const Tensor& y, std::int64_t heads) {
    const Tensor z = map.forward(y, Epilogue::none, {}, type);
    return transpose(reshape(z, {z.size(0), z.size(1), heads, -1}), 1, 2);
  };
  const auto read = [&] {
    const Tensor& memory = positions.memory;
    require(memory.defined() && memory.rank() == 3 && memory.size(0) == x.size(0),
            "cross-attention: wants a memory [batch, source time, width] of ", x.size(0), " rows");
    return Tensors{mapped(key, memory, config.key_value_heads),
                   mapped(value, memory, config.key_value_heads)};
  };
  AttentionOptions options;
  options.soft_cap = config.soft_cap;
  options.strict = config.strict;
  options.query_mask = positions.real;
  options.key_mask = positions.memory_real;
  Tensors parts;
  if (pass.past) {
    std::vector<NDArray>& kept = pass.past->kept(layer);
    if (kept.empty()) {
      for (const Tensor& part : read()) kept.push_back(part.array());
      if (options.key_mask.defined()) kept.push_back(options.key_mask);
    }
    parts = {Tensor(kept[0]), Tensor(kept[1])};
    options.key_mask = kept.size() > 2 ? kept[2] : NDArray();
  } else {
    parts = read();
  }
  const Tensor mixed = merge_heads(attention(mapped(query, x, config.heads), parts[0], parts[1], options));
  return out.forward(mixed, Epilogue::none, residual, result);
}

void CrossAttention::list(Parts& parts) {
  parts("query", query);
  parts("key", key);
  parts("value", value);
  parts("out", out);
}

Block::Block(const BlockConfig& block, const Init& init)
    : order(block.order),
      norm1(block.norm, block.width, block.bias, init, block.norm_epsilon),
      attention(block, init),
      norm2(block.norm, block.width, block.bias, init, block.norm_epsilon),
      ffn(block.width, block.resolved().ffn, block.activation, block.bias, init),
      dropout(block.dropout) {
  if (!block.cross) return;
  cross_norm.emplace(block.norm, block.width, block.bias, init, block.norm_epsilon);
  cross.emplace(block, init);
}

Tensor Block::forward(const Tensor& x, const PassPositions& positions, const Pass& pass, int layer) const {
  const Scope scope(*this);
  // r + part(y); where nothing is dropped, the part's last map adds r itself. The sums are of r's type,
  // whatever the precision of products.
  const bool drops = pass.training && dropout.p > 0;
  const auto branch = [&](const Tensor& r, const Norm& norm, const auto& part) {
    const auto add = [&](const Tensor& y) {
      return drops ? dropout.forward(part(y, Tensor(), r.dtype()), pass, r) : part(y, r, std::nullopt);
    };
    if (order == NormOrder::post) return norm.forward(add(r));
    // What the norms make is read by products alone.
    return add(norm.forward(r, r.dtype() == DType::f32 ? std::optional(product_dtype()) : std::nullopt));
  };
  using Result = std::optional<DType>;
  Tensor u = branch(x, norm1, [&](const Tensor& y, const Tensor& r, Result result) {
    return attention.forward(y, positions, pass, layer, r, result);
  });
  if (cross) {
    u = branch(u, *cross_norm, [&](const Tensor& y, const Tensor& r, Result result) {
      return cross->forward(y, positions, pass, layer, r, result);
    });
  }
  return branch(u, norm2,
                [&](const Tensor& y, const Tensor& r, Result result) { return ffn.forward(y, r, result); });
}

void Block::list(Parts& parts) {
  parts("norm1", norm1);
  parts("attention", attention);
  if (cross) {
    parts("cross_norm", *cross_norm);
    parts("cross", *cross);
  }
  parts("norm2", norm2);
  parts("ffn", ffn);
}

}  // namespace needle
