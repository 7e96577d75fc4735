// A score of -infinity is a weight of exactly 0, and where() gives what it does not choose a gradient of
// exactly 0.
#pragma once

#include <cmath>
#include <limits>

#include "needle/ops/ops.h"

namespace needle::answers {

/// Attention in which position t reads positions 0 ... t: query, key and value [batch, heads, time, width].
inline Tensor causal_attention(const Tensor& query, const Tensor& key, const Tensor& value) {
  const Tensor scores = matmul(query, transpose(key)) / std::sqrt(static_cast<double>(query.size(-1)));
  const Tensor position(NDArray::arange(query.size(2), DType::i64, query.device()));
  const Tensor allowed = less_equal(unsqueeze(position, 0), unsqueeze(position, 1));  // [queries, keys]
  const Tensor never = constant_like(scores, -std::numeric_limits<double>::infinity());
  return matmul(softmax(where(allowed, scores, never)), value);
}

}  // namespace needle::answers
