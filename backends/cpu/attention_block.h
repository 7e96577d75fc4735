// One call of attention, cut into blocks of queries, and the scores of a block: which keys each query may
// read, soft cap, bias and masks. Scores of a tile are kept transposed, [keys, kQueries], so that queries lie
// in the lanes of a vector and nothing is ever summed across lanes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "backends/backend.h"
#include "backends/cpu/lanes.h"
#include "backends/cpu/loops.h"
#include "backends/cpu/staging.h"
#include "backends/scratch.h"

namespace needle::attention {

/// Queries of a block, and keys of a tile: a tile of scores, its keys and its values fit the first cache.
inline constexpr int kQueries = 64, kKeys = 64;

inline std::int64_t rounded_up(std::int64_t size, std::int64_t unit) {
  return (size + unit - 1) / unit * unit;
}

/// Keys first, ..., last - 1.
struct KeyRange {
  std::int64_t first = 0, last = 0;
  std::int64_t count() const { return last - first; }
  /// Rows that the kernels compute for them.
  std::int64_t padded() const { return rounded_up(count(), lanes::kRows); }
};

/// Up to kQueries neighbouring queries of one head.
struct QueryBlock {
  std::int64_t batch = 0, head = 0, start = 0, count = 0;
  /// Query q may read keys first[q], ..., last[q] - 1, as far as causality and window go. A query beyond
  /// `count` may read none.
  std::int32_t first[kQueries] = {}, last[kQueries] = {};
  KeyRange any;  ///< keys that some query may read
  KeyRange all;  ///< keys that each of the kQueries queries may read
};

/// body(index, query) for each score of the first `rows` keys of a tile, as vector instructions.
template <class T, class Body>
void for_scores(std::int64_t rows, const Body& body) {
  for (std::int64_t i = 0; i < rows; ++i) {
#pragma omp simd simdlen(lanes::kLanes <T>)
    for (int q = 0; q < kQueries; ++q) body(i * kQueries + q, q);
  }
}

/// A weight's exponent is taken relative to this: a row without keys has a largest score and a log sum of
/// -infinity, and exp(-infinity - 0) is the 0 that its weights are.
template <class T>
T finite_shift(T x) {
  return x == -math::infinity<T>() ? T(0) : x;
}

/// What of a tile's products causality leaves. Scores, [keys, queries]: to a key, the queries from its own
/// position on.
struct CausalScores {
  std::int64_t shift;  ///< the query that stands at the tile's first key
  std::pair<std::int64_t, std::int64_t> inner(std::int64_t, std::int64_t, std::int64_t depth) const {
    return {0, depth};
  }
  std::int64_t column(std::int64_t key) const { return shift + key; }
};
/// Sums over keys for each query: those up to its position.
struct CausalSumOverKeys {
  std::int64_t shift;
  std::pair<std::int64_t, std::int64_t> inner(std::int64_t query, std::int64_t count,
                                              std::int64_t keys) const {
    return {0, std::clamp<std::int64_t>(query + count - shift, 0, keys)};
  }
  std::int64_t column(std::int64_t) const { return 0; }
};
/// Sums over queries for each key: those from its position on.
struct CausalSumOverQueries {
  std::int64_t shift;
  std::pair<std::int64_t, std::int64_t> inner(std::int64_t key, std::int64_t, std::int64_t queries) const {
    return {std::clamp<std::int64_t>(shift + key, 0, queries), queries};
  }
  std::int64_t column(std::int64_t) const { return 0; }
};

/// Sizes and masks of a call.
template <class T>
struct Call {
  const AttentionSettings& settings;
  const AttentionArrays& arrays;
  std::int64_t batch = arrays.query.shape[0], heads = arrays.query.shape[1];
  std::int64_t queries = arrays.query.shape[2], keys = arrays.key.shape[2];
  std::int64_t width = arrays.query.shape[3], value_width = arrays.value.shape[3];
  std::int64_t key_heads = arrays.key.shape[1], group = heads / std::max<std::int64_t>(key_heads, 1);
  std::int64_t blocks = (queries + kQueries - 1) / kQueries;

  /// Block number `index` of a head.
  QueryBlock block(std::int64_t b, std::int64_t head, std::int64_t index) const {
    QueryBlock result;
    result.batch = b;
    result.head = head;
    result.start = index * kQueries;
    result.count = std::min<std::int64_t>(kQueries, queries - result.start);
    result.any = {keys, 0};
    result.all = {0, result.count == kQueries ? keys : 0};
    for (int q = 0; q < result.count; ++q) {
      const std::int64_t position = settings.offset + result.start + q;
      const std::int64_t last = settings.causal ? std::clamp<std::int64_t>(position + 1, 0, keys) : keys;
      const std::int64_t first =
          settings.window > 0 ? std::clamp<std::int64_t>(position - settings.window + 1, 0, last) : 0;
      result.first[q] = static_cast<std::int32_t>(first);
      result.last[q] = static_cast<std::int32_t>(last);
      if (first < last) result.any = {std::min(result.any.first, first), std::max(result.any.last, last)};
      result.all = {std::max(result.all.first, first), std::min(result.all.last, last)};
    }
    return result;
  }

  /// The query of the block that stands at the tile's first key; far before the first where all read all.
  std::int64_t shift(const QueryBlock& block, const KeyRange& tile) const {
    return settings.causal ? tile.first - settings.offset - block.start : -(kKeys + kQueries);
  }

  /// Row 0 of a block's log sums.
  T* log_sum(const QueryBlock& block) const {
    return arrays.log_sum.as<T>() + (block.batch * heads + block.head) * queries + block.start;
  }
  /// Whether there is enough to do for more than one thread.
  bool is_large() const { return batch * heads * blocks * kQueries * keys >= kParallelElements; }

  /// Scores of the tile's keys against the block's queries, both packed; -infinity for pairs that are masked.
  /// Sets all padded rows of all kQueries. `slopes`, if wanted, takes the soft cap's derivative.
  void scores(const QueryBlock& block, const KeyRange& tile, const lanes::Left<T>& key_rows,
              const lanes::Rows<const T>& query_columns, T* scores, T* slopes) const {
    lanes::multiply<T>(key_rows, query_columns, {scores, kQueries}, tile.count(), block.count, width, false,
                       CausalScores{shift(block, tile)});
    const std::int64_t rows = tile.padded();
    if (settings.soft_cap > 0) {
      const T cap = static_cast<T>(settings.soft_cap);
      for_scores<T>(rows, [&](std::int64_t i, int) {
        const T t = math::tanh(scores[i] / cap);
        scores[i] = cap * t;
        if (slopes) slopes[i] = 1 - t * t;
      });
    }
    if (settings.bias.data) {
      for_pairs<T>(settings.bias, block, tile, [&](std::int64_t i, T bias) { scores[i] += bias; });
    }
    // By selection, so that whatever a masked score is cannot matter.
    const T masked = -math::infinity<T>();
    if (tile.first < block.all.first || tile.first + rows > block.all.last) {
      for_scores<T>(rows, [&](std::int64_t i, int q) {
        const std::int32_t key = static_cast<std::int32_t>(tile.first + i / kQueries);
        scores[i] = (block.first[q] <= key) & (key < block.last[q]) ? scores[i] : masked;
      });
    }
    if (settings.key_mask.data) {
      for (std::int64_t i = 0; i < tile.count(); ++i) {
        if (!is_real(block.batch, tile.first + i)) std::fill_n(scores + i * kQueries, kQueries, masked);
      }
    }
    if (settings.allowed.data) {
      for_pairs<bool>(settings.allowed, block, tile, [&](std::int64_t i, bool allowed) {
        if (!allowed) scores[i] = masked;
      });
    }
  }

  /// body(index of the score, element) for each element of x, [batch or 1, heads or 1, queries, keys], that
  /// belongs to the tile.
  template <class Element, class Body>
  static void for_pairs(const View& x, const QueryBlock& block, const KeyRange& tile, const Body& body) {
    Element* from = x.as<Element>() + (x.shape[0] == 1 ? 0 : block.batch * x.strides[0]) +
                    (x.shape[1] == 1 ? 0 : block.head * x.strides[1]) + block.start * x.strides[2] +
                    tile.first * x.strides[3];
    for (std::int64_t q = 0; q < block.count; ++q) {
      for (std::int64_t i = 0; i < tile.count(); ++i)
        body(i * kQueries + q, from[q * x.strides[2] + i * x.strides[3]]);
    }
  }

  /// Whether key j is a key, not padding.
  bool is_real(std::int64_t b, std::int64_t j) const {
    const View& mask = settings.key_mask;
    return !mask.data || mask.as<bool>()[b * mask.strides[0] + j * mask.strides[1]];
  }
};

/// Arrays of numbers begin at a cache line, so that no vector straddles two.
inline constexpr std::size_t kAlignment = 64;

/// Rows copied side by side for the kernels, each filled up with zeros to whole vectors. There is room for
/// kRows more, since products compute that many at once.
template <class T>
struct PackedRows {
  const std::int64_t width, stride;

  PackedRows(MemoryPool& pool, std::int64_t rows, std::int64_t row_width)
      : width(row_width),
        stride(rounded_up(row_width, lanes::kLanes<T>)),
        count_(static_cast<std::size_t>((rows + lanes::kRows) * stride)),
        memory_(pool, count_) {
    clear();
  }

  void clear() { std::fill_n(memory_.data(), count_, T(0)); }
  T* row(std::int64_t i) const { return memory_.data() + i * stride; }
  lanes::Left<T> left(std::int64_t i) const { return {row(i), stride, 1}; }
  lanes::Rows<T> rows(std::int64_t i) const { return {row(i), stride}; }

  /// Rows 0, 1, ... = factor times rows start, start + 1, ... of x[b, h].
  void load(const View& x, std::int64_t b, std::int64_t h, std::int64_t start, std::int64_t count, T factor) {
    dispatch_stored<T>(x.dtype, [&](auto tag) {
      using Stored = typename decltype(tag)::type;
      const Stored* from = x.as<Stored>() + b * x.strides[0] + h * x.strides[1] + start * x.strides[2];
      for (std::int64_t i = 0; i < count; ++i) {
        for (std::int64_t c = 0; c < width; ++c)
          row(i)[c] = factor * static_cast<T>(from[i * x.strides[2] + c]);
      }
    });
  }
  /// Rows start, start + 1, ... of x[b, h] = factor times rows 0, 1, ...
  void store(const View& x, std::int64_t b, std::int64_t h, std::int64_t start, std::int64_t count,
             T factor) {
    dispatch_stored<T>(x.dtype, [&](auto tag) {
      using Stored = typename decltype(tag)::type;
      Stored* to = x.as<Stored>() + b * x.strides[0] + h * x.strides[1] + start * x.strides[2];
      for (std::int64_t i = 0; i < count; ++i) {
        for (std::int64_t c = 0; c < width; ++c)
          to[i * x.strides[2] + c] = static_cast<Stored>(factor * row(i)[c]);
      }
    });
  }
  /// Multiplies row i by factors[i].
  void scale(const T* factors, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t c = 0; c < stride; ++c) row(i)[c] *= factors[i];
    }
  }

 private:
  std::size_t count_;
  Scratch<T> memory_;
};

/// The keys and values of one key head. What stands in place of padding is packed as zeros: even a NaN there
/// reaches no sum.
template <class T>
struct PackedKeys {
  PackedRows<T> keys, values;

  PackedKeys(MemoryPool& pool, const Call<T>& call)
      : keys(pool, call.keys, call.width), values(pool, call.keys, call.value_width) {}
  void clear() {
    keys.clear();
    values.clear();
  }
  void load(const Call<T>& call, std::int64_t b, std::int64_t key_head) {
    keys.load(call.arrays.key, b, key_head, 0, call.keys, 1);
    values.load(call.arrays.value, b, key_head, 0, call.keys, 1);
    for (std::int64_t j = 0; j < call.keys; ++j) {
      if (call.is_real(b, j)) continue;
      std::fill_n(keys.row(j), keys.stride, T(0));
      std::fill_n(values.row(j), values.stride, T(0));
    }
  }
  /// Whether all values are finite.
  bool values_are_finite(std::int64_t count) const {
    lanes::Vector<T> zeros = {};  // a lane becomes NaN by any value that is not finite
    for (std::int64_t i = 0; i < count * values.stride; i += lanes::kLanes<T>)
      zeros += lanes::at(values.row(0) + i) * T(0);
    T sum = 0;
    for (int lane = 0; lane < lanes::kLanes<T>; ++lane) sum += zeros[lane];
    return sum == T(0);
  }
};

/// A block's queries, scaled, as rows and, transposed, as columns.
template <class T>
struct PackedQueries {
  PackedRows<T> rows, columns;
  PackedQueries(MemoryPool& pool, std::int64_t width)
      : rows(pool, kQueries, width), columns(pool, rows.stride, kQueries) {}
  void load(const QueryBlock& block, const View& x, T factor) {
    rows.load(x, block.batch, block.head, block.start, block.count, factor);
    lanes::transpose<T>(rows.rows(0), columns.rows(0), kQueries, rows.stride);
  }
};

/// function(call) for the type in which the call computes, f32 or f64; mixed types are an error.
template <class Function>
void dispatch_call(const AttentionSettings& settings, const AttentionArrays& arrays,
                   const Function& function) {
  const DType stored = arrays.query.dtype, computed = computing(stored);
  dispatch_computing("attention", computed, [&](auto tag) {
    const auto require_dtype = [](const View& view, DType wanted) {
      require(!view.data || view.dtype == wanted, "attention: an array must be ", name_of(wanted), ", got ",
              name_of(view.dtype));
    };
    for (const View& view : {arrays.key, arrays.value, arrays.output}) require_dtype(view, stored);
    for (const View& view : {arrays.log_sum, settings.bias}) require_dtype(view, computed);
    const Call<typename decltype(tag)::type> call{settings, arrays};
    require(call.keys <= std::numeric_limits<std::int32_t>::max(), "attention: ", call.keys,
            " keys are too many");
    function(call);
  });
}

}  // namespace needle::attention
