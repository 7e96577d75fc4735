// Scaled dot-product attention with everything that decides who reads whom.
#pragma once

#include <optional>

#include "needle/autograd.h"

namespace needle {

/// Which keys a query may read. All that is given must allow a pair.
struct AttentionOptions {
  double scale =
      0;  ///< factor on query times key; 0: 1 / sqrt(key width) (Vaswani et al. 2017, section 3.2.1)
  double soft_cap = 0;  ///< c > 0: a scaled score s becomes c tanh(s / c)
  bool causal = false;  ///< read keys at positions up to the query's
  /// Absolute position of query 0, key j standing at j; by default the queries are the last of the keys.
  std::optional<std::int64_t> offset = {};
  std::int64_t window = 0;  ///< w > 0: the query at position p reads p - w + 1 ... p at most
  NDArray key_mask = {};    ///< bool [batch, keys]: true = a real key
  NDArray allowed = {};     ///< bool [batch or 1, heads or 1, queries, keys]: true = may attend
  /// Every query that `query_mask` (bool [batch, queries]; none: all) calls real must have a key, else an
  /// Error that names batch row and query. Otherwise a query without keys gives zeros.
  bool strict = false;
  NDArray query_mask = {};
};

/// softmax(cap(scale q k^T) + bias, over the allowed keys) v: query [batch, heads, queries, width], key
/// [batch, key heads, keys, width], value [batch, key heads, keys, value width] -> [batch, heads, queries,
/// value width]. Each key head serves an equal run of heads. bias [batch or 1, heads or 1, queries, keys] or
/// undefined; it has a gradient.
Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value,
                 const AttentionOptions& options = {}, const Tensor& bias = {});
/// Query, key and value [batch, heads (or key heads), time, width] that lie side by side in `packed` [batch,
/// time, (heads + 2 key heads) width], as views.
Tensors split_heads(const Tensor& packed, std::int64_t heads, std::int64_t key_heads);
/// [batch, heads, time, width] -> [batch, time, heads width].
Tensor merge_heads(const Tensor& x);
/// merge_heads(attention(split_heads(packed))) in one op, with one array as its gradient.
Tensor self_attention(const Tensor& packed, std::int64_t heads, std::int64_t key_heads,
                      const AttentionOptions& options = {});
/// The weights alone, [batch, heads, queries, keys]: rows sum to 1, or are 0 where no key is allowed.
Tensor attention_weights(const Tensor& query, const Tensor& key, const AttentionOptions& options = {},
                         const Tensor& bias = {});
/// attention() in simple ops: the weights as a whole matrix, times the values.
Tensor attention_definition(const Tensor& query, const Tensor& key, const Tensor& value,
                            const AttentionOptions& options, const Tensor& bias);
/// The pairs that causality, window, key mask and `allowed` leave: bool [batch or 1, heads or 1, queries,
/// keys].
NDArray allowed_pairs(const AttentionOptions& options, std::int64_t queries, std::int64_t keys,
                      Device device);

}  // namespace needle
