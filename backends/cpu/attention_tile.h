// What the forward and backward kernels of attention share: the call with its masks, and a tile of scores.
//
// A tile holds the scores of up to kTile keys (its rows) against a block of queries (its columns, the vector
// lanes), so that everything done to the scores of a query goes down a column, without sums across lanes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "backends/backend.h"
#include "backends/cpu/small_product.h"

namespace needle {

/// Keys of a tile.
inline constexpr std::int64_t kTile = 64;
/// Queries of a block: the columns that one block of small_product holds in registers.
template <class T>
inline constexpr std::int64_t kQueries = kBlockVectors* kLanes<T>;

/// `size` rounded up to whole vectors.
template <class T>
std::int64_t padded(std::int64_t size) {
  return (size + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
}

/// Part of an axis.
struct Span {
  std::int64_t start, end;
  std::int64_t size() const { return std::max<std::int64_t>(end - start, 0); }
};

/// One row of a [batch, heads, time, width] view.
template <class T>
T* row_of(const View& x, std::int64_t batch, std::int64_t head, std::int64_t time) {
  return x.as<T>() + batch * x.strides[0] + head * x.strides[1] + time * x.strides[2];
}

/// The sizes of a call, and which of its pairs the masks allow.
template <class T>
class AttentionCall {
 public:
  AttentionCall(const AttentionSettings& s, const AttentionArrays& a)
      : settings(s),
        arrays(a),
        batch(a.query.shape[0]),
        heads(a.query.shape[1]),
        key_heads(a.key.shape[1]),
        group(heads / std::max<std::int64_t>(key_heads, 1)),
        queries(a.query.shape[2]),
        keys(a.key.shape[2]),
        width(a.query.shape[3]),
        value_width(a.value.shape[3]) {
    for (std::int64_t b = 0; b < batch; ++b) real_keys_.push_back(real_keys(b));
  }

  const AttentionSettings& settings;
  const AttentionArrays& arrays;
  const std::int64_t batch, heads, key_heads, group, queries, keys, width, value_width;

  /// The keys that any query of [first, first + count) may read: tiles outside are not computed.
  Span readable_keys(std::int64_t b, std::int64_t first, std::int64_t count) const {
    Span span = real_keys_[static_cast<std::size_t>(b)];
    const std::int64_t position = settings.offset + first;
    if (settings.causal) span.end = std::min(span.end, position + count);
    if (settings.window > 0) span.start = std::max(span.start, position - settings.window + 1);
    // Tiles begin at multiples of their size, so that a query's sums do not depend on what it may not read.
    span.start = span.start / kTile * kTile;
    return span;
  }

  /// Replaces the scores of forbidden pairs by -infinity, and adds what is added to the others: scores[key -
  /// tile.start] [query - first]. Leaves the slope of the soft cap in `slopes` where that is wanted.
  void finish_scores(std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count, Span tile,
                     T* scores, T* slopes) const {
    for (std::int64_t j = tile.start; j < tile.end; ++j) {
      T* row = scores + (j - tile.start) * kQueries<T>;
      if (settings.soft_cap > 0) cap(row, slopes ? slopes + (j - tile.start) * kQueries<T> : nullptr);
      if (settings.bias.data) add_bias(b, h, first, count, j, row);
      const Span lanes = readers(b, first, j);
      std::fill(row, row + std::min(lanes.start, kQueries<T>), -math::infinity<T>());
      std::fill(row + std::max(lanes.end, std::min(lanes.start, kQueries<T>)), row + kQueries<T>,
                -math::infinity<T>());
      if (settings.allowed.data) forbid(b, h, first, count, j, row);
    }
  }

 private:
  Span real_keys(std::int64_t b) const {
    Span span{0, keys};
    const View& mask = settings.key_mask;
    if (!mask.data) return span;
    const auto real = [&](std::int64_t j) {
      return mask.as<bool>()[b * mask.strides[0] + j * mask.strides[1]];
    };
    while (span.end > 0 && !real(span.end - 1)) --span.end;
    while (span.start < span.end && !real(span.start)) ++span.start;
    return span;
  }

  /// The lanes whose queries may read key j by position and key mask.
  Span readers(std::int64_t b, std::int64_t first, std::int64_t j) const {
    const View& mask = settings.key_mask;
    if (mask.data && !mask.as<bool>()[b * mask.strides[0] + j * mask.strides[1]]) return {0, 0};
    const std::int64_t distance =
        j - settings.offset - first;  // the lane whose query stands where the key does
    Span lanes{0, kQueries<T>};
    if (settings.causal) lanes.start = std::clamp<std::int64_t>(distance, 0, kQueries<T>);
    if (settings.window > 0) lanes.end = std::clamp<std::int64_t>(distance + settings.window, 0, kQueries<T>);
    return lanes;
  }

  void cap(T* row, T* slopes) const {
    const T limit = static_cast<T>(settings.soft_cap), inverse = T(1) / limit;
#pragma omp simd
    for (std::int64_t i = 0; i < kQueries<T>; ++i) {
      const T bent = math::tanh(row[i] * inverse);
      row[i] = bent * limit;
      if (slopes) slopes[i] = T(1) - bent * bent;
    }
  }

  void add_bias(std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count, std::int64_t j,
                T* row) const {
    const View& bias = settings.bias;
    const T* from = bias.as<T>() + b * bias.strides[0] + h * bias.strides[1] + first * bias.strides[2] +
                    j * bias.strides[3];
    for (std::int64_t i = 0; i < count; ++i) row[i] += from[i * bias.strides[2]];
  }

  void forbid(std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count, std::int64_t j,
              T* row) const {
    const View& mask = settings.allowed;
    const bool* from = mask.as<bool>() + b * mask.strides[0] + h * mask.strides[1] + first * mask.strides[2] +
                       j * mask.strides[3];
    for (std::int64_t i = 0; i < count; ++i)
      row[i] = from[i * mask.strides[2]] ? row[i] : -math::infinity<T>();
  }

  std::vector<Span> real_keys_;
};

/// Rows [first, first + count) of x, times `factor`, as columns: to[c][i]; columns past count are 0.
template <class T>
void pack_columns(const View& x, std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count,
                  T factor, T* to) {
  const std::int64_t width = x.shape[3];
  if (count < kQueries<T>) std::fill_n(to, width * kQueries<T>, T(0));
  for (std::int64_t i = 0; i < count; ++i) {
    const T* from = row_of<T>(x, b, h, first + i);
    for (std::int64_t c = 0; c < width; ++c) to[c * kQueries<T> + i] = from[c] * factor;
  }
}

/// Rows [first, first + count) of x as rows of whole vectors: to[i][c]; what is past count or width is 0.
template <class T>
void pack_rows(const View& x, std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count, T* to) {
  const std::int64_t width = x.shape[3], stride = padded<T>(width);
  if (count < kQueries<T> || stride != width) std::fill_n(to, kQueries<T> * stride, T(0));
  for (std::int64_t i = 0; i < count; ++i) std::copy_n(row_of<T>(x, b, h, first + i), width, to + i * stride);
}

/// The tile's rows of a key or value as the left operand of a product, or its columns.
template <class T>
LeftOperand<T> tile_rows(const View& x, std::int64_t b, std::int64_t h, Span tile) {
  return {row_of<T>(x, b, h, tile.start), x.strides[2], 1};
}
template <class T>
LeftOperand<T> tile_columns(const View& x, std::int64_t b, std::int64_t h, Span tile) {
  return {row_of<T>(x, b, h, tile.start), 1, x.strides[2]};
}

}  // namespace needle
