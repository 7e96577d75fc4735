#include "needle/nn/attention.h"

namespace needle {

MultiHeadAttention::MultiHeadAttention(const BlockConfig& block, const Init& init)
    : config(block),
      qkv(block.width, block.width / block.heads * (block.heads + 2 * block.key_value_heads), block.bias,
          init),
      out(block.width, block.width, block.bias, init, true) {
  require(block.width % block.heads == 0, "attention: the width ", block.width, " is not a multiple of ",
          block.heads, " heads");
  require(block.key_value_heads > 0 && block.heads % block.key_value_heads == 0, "attention: ", block.heads,
          " heads are not a multiple of ", block.key_value_heads, " key/value heads");
}

Tensor MultiHeadAttention::forward(const Tensor& x, const PassPositions& positions, const Pass& pass,
                                   int layer) const {
  const Scope scope(*this);
  const std::int64_t batch = x.size(0), time = x.size(1), head_width = config.width / config.heads;
  const std::int64_t key_columns = config.key_value_heads * head_width;
  const Tensors columns = split(qkv.forward(x), {config.width, key_columns, key_columns}, -1);
  const auto as_heads = [&](const Tensor& part,
                            std::int64_t heads) {  // [batch, heads, time, head width], a view
    return transpose(reshape(part, {batch, time, heads, head_width}), 1, 2);
  };
  Tensor query = as_heads(columns[0], config.heads);
  Tensor key = as_heads(columns[1], config.key_value_heads),
         value = as_heads(columns[2], config.key_value_heads);
  if (config.rotary) {
    query = rotary(query, positions.ids, config.rotary_base);
    key = rotary(key, positions.ids, config.rotary_base);
  }
  AttentionOptions options;
  options.causal = config.causal;
  options.window = config.window;
  options.soft_cap = config.soft_cap;
  options.strict = config.strict;
  options.query_mask = positions.real;
  options.key_mask = positions.real;
  options.offset = 0;
  if (pass.past) {
    options.offset = pass.past->past();
    options.key_mask = pass.past->key_mask();
    if (config.window > 0 && options.key_mask.defined()) {
      options.allowed = pass.past->window_pairs(config.window);
      if (options.allowed.defined()) options.window = 0;
    }
    const LayerCache all = pass.past->extend(layer, key.array(), value.array());
    key = Tensor(all.key);
    value = Tensor(all.value);
  }
  const Tensor mixed = attention(query, key, value, options);
  return out.forward(reshape(transpose(mixed, 1, 2), {batch, time, config.width}));
}

void MultiHeadAttention::list(Parts& parts) {
  parts("qkv", qkv);
  parts("out", out);
}

Block::Block(const BlockConfig& block, const Init& init)
    : order(block.order),
      norm1(block.norm, block.width, block.bias, init, block.norm_epsilon),
      attention(block, init),
      norm2(block.norm, block.width, block.bias, init, block.norm_epsilon),
      ffn(block.width, block.ffn, block.activation, block.bias, init),
      dropout(block.dropout) {}

Tensor Block::forward(const Tensor& x, const PassPositions& positions, const Pass& pass, int layer) const {
  const Scope scope(*this);
  const auto attend = [&](const Tensor& y) {
    return dropout.forward(attention.forward(y, positions, pass, layer), pass);
  };
  const auto feed = [&](const Tensor& y) { return dropout.forward(ffn.forward(y), pass); };
  if (order == NormOrder::pre) {
    const Tensor u = x + attend(norm1.forward(x));
    return u + feed(norm2.forward(u));
  }
  const Tensor u = norm1.forward(x + attend(x));
  return norm2.forward(u + feed(u));
}

void Block::list(Parts& parts) {
  parts("norm1", norm1);
  parts("attention", attention);
  parts("norm2", norm2);
  parts("ffn", ffn);
}

}  // namespace needle
