// Pairs of a query and a key: which of them may be read, and what makes a score of their product.
#pragma once

#include <algorithm>
#include <limits>

#include "backends/backend.h"
#include "backends/cuda/attention_tiles.h"
#include "backends/cuda/cuda_backend.h"
#include "backends/math.h"

namespace needle::cuda::attention {

/// A tile with queries as rows and keys as columns, or the other way round: which query and which key of the
/// tile a thread's element (i, j) belongs to, and which of the thread's own queries that is.
struct QueriesAsRows {
  __device__ static int query(int i, int) { return own_row(i); }
  __device__ static int key(int, int j) { return own_column(j); }
  __device__ static int own_query(int i, int) { return i; }
};
struct KeysAsRows {
  __device__ static int query(int, int j) { return own_column(j); }
  __device__ static int key(int i, int) { return own_row(i); }
  __device__ static int own_query(int, int j) { return j; }
};

/// A head, and the first query and the first key of a tile of its scores.
struct Place {
  int batch, head, query, key;
};

/// A weight's exponent is taken relative to this: a row without keys has a largest score and a log sum of
/// -infinity, and exp(-infinity - 0) is the 0 that its weights are.
__device__ inline float finite_shift(float x) { return x == -math::infinity<float>() ? 0.0f : x; }

/// Queries or keys first, ..., last - 1.
struct Range {
  int first, last;
};

/// One element for each pair, [batch or 1, heads or 1, queries, keys], or absent.
template <class T>
struct PairArray {
  T* data;
  std::int64_t strides[4];

  explicit PairArray(const View& x)
      : data(x.as<T>()),
        strides{x.shape[0] == 1 ? 0 : x.strides[0], x.shape[1] == 1 ? 0 : x.strides[1], x.strides[2],
                x.strides[3]} {}
  /// Element [0, 0] of a tile.
  __device__ T* tile(const Place& place) const {
    return data + place.batch * strides[0] + place.head * strides[1] + place.query * strides[2] +
           place.key * strides[3];
  }
};

/// AttentionSettings as kernels see them.
struct Pairs {
  int queries, keys;
  float scale, soft_cap;
  int first_shift, last_shift;  ///< query q may read keys q + first_shift, ..., q + last_shift - 1
  PairArray<const bool> key_mask, allowed;
  PairArray<const float> bias;

  Pairs(const AttentionSettings& settings, std::int64_t query_count, std::int64_t key_count)
      : queries(static_cast<int>(query_count)),
        keys(static_cast<int>(key_count)),
        scale(static_cast<float>(settings.scale)),
        soft_cap(static_cast<float>(settings.soft_cap)),
        first_shift(-queries),
        last_shift(keys),
        key_mask(for_all_queries(settings.key_mask)),
        allowed(settings.allowed),
        bias(settings.bias) {
    require(query_count + key_count <= std::numeric_limits<int>::max(), "attention: ", query_count,
            " queries and ", key_count, " keys are too many");
    const auto shift = [&](std::int64_t position) {
      return static_cast<int>(std::clamp(position, -query_count, key_count));
    };
    if (settings.causal) last_shift = shift(settings.offset + 1);
    if (settings.window > 0) first_shift = shift(settings.offset - settings.window + 1);
  }

  /// The keys that causality and window let a query read.
  __device__ __forceinline__ Range keys_of(int query) const {
    const int last = max(0, min(query + last_shift, keys));
    return {max(0, min(query + first_shift, last)), last};
  }
  /// Those that some query of the tile that begins with `query` may read.
  __device__ __forceinline__ Range keys_of_tile(int query) const {
    return {keys_of(query).first, keys_of(min(query + kTile, queries) - 1).last};
  }
  /// The queries that may read some key of the tile that begins with `key`.
  __device__ __forceinline__ Range queries_of_tile(int key) const {
    return {max(0, key - last_shift + 1), min(min(key + kTile, keys) - first_shift, queries)};
  }

  /// Makes scores of products: scaled, capped, biased, and -infinity for pairs that may not be read.
  /// The soft cap's derivatives, if wanted, are kept where the tile of weights is to be.
  template <class Layout>
  __device__ __forceinline__ void score(const Place& place, Tile& scores, Shared* cap_slopes) const {
    for_own([&](int i, int j) { scores[i][j] *= scale; });
    if (soft_cap > 0) {
      for_own([&](int i, int j) {
        const float t = math::tanh(scores[i][j] / soft_cap);
        scores[i][j] = soft_cap * t;
        if (cap_slopes) own_weight(*cap_slopes, i, j) = 1 - t * t;
      });
    }
    if (bias.data) {
      for_pairs<Layout>(bias, place, [&](int i, int j, float x) { scores[i][j] += x; });
    }
    for_own([&](int i, int j) {
      const int query = place.query + Layout::query(i, j), key = place.key + Layout::key(i, j);
      const Range range = keys_of(query);
      if (query >= queries || key < range.first || key >= range.last) scores[i][j] = kMasked;
    });
    if (key_mask.data) apply<Layout>(key_mask, place, scores);
    if (allowed.data) apply<Layout>(allowed, place, scores);
  }

  /// body(i, j, element) for each element of x that belongs to a score of this thread.
  template <class Layout, class T, class Body>
  __device__ __forceinline__ void for_pairs(const PairArray<T>& x, const Place& place,
                                            const Body& body) const {
    constexpr bool kQueriesAreRows = std::is_same_v<Layout, QueriesAsRows>;
    T* row = x.tile(place) + Layout::query(0, 0) * x.strides[2] + Layout::key(0, 0) * x.strides[3];
    NEEDLE_UNROLL
    for (int i = 0; i < kEach; ++i, row += x.strides[kQueriesAreRows ? 2 : 3]) {
      T* element = row;
      NEEDLE_UNROLL
      for (int j = 0; j < kEach; ++j, element += kSide * x.strides[kQueriesAreRows ? 3 : 2]) {
        if (place.query + Layout::query(i, j) < queries && place.key + Layout::key(i, j) < keys)
          body(i, j, *element);
      }
    }
  }

 private:
  // Masking is by selection, so that whatever a masked score is cannot matter.
  static constexpr float kMasked = -std::numeric_limits<float>::infinity();

  template <class Layout>
  __device__ __forceinline__ void apply(const PairArray<const bool>& mask, const Place& place,
                                        Tile& scores) const {
    for_pairs<Layout>(mask, place, [&](int i, int j, bool may_read) {
      if (!may_read) scores[i][j] = kMasked;
    });
  }
  /// [batch, keys] as [batch, 1, queries, keys].
  View for_all_queries(View mask) const {
    mask.shape = {mask.shape[0], 1, queries, mask.shape[1]};
    mask.strides = {mask.strides[0], 0, 0, mask.strides[1]};
    return mask;
  }
};

/// What all kernels of a call get.
struct Call {
  Pairs pairs;
  Heads query, key, value;
  int heads, group;  ///< and how many of them a key head serves
  float* log_sum;

  Call(const AttentionSettings& settings, const AttentionArrays& arrays)
      : pairs(settings, arrays.query.shape[2], arrays.key.shape[2]),
        query(arrays.query),
        key(arrays.key),
        value(arrays.value),
        heads(static_cast<int>(arrays.query.shape[1])),
        group(heads / std::max(static_cast<int>(arrays.key.shape[1]), 1)),
        log_sum(arrays.log_sum.as<float>()) {
    const DType stored = arrays.query.dtype;
    require_no_float64("attention", stored);
    const auto require_dtype = [](const View& view, DType wanted) {
      require(!view.data || view.dtype == wanted, "attention: an array must be ", name_of(wanted), ", got ",
              name_of(view.dtype));
    };
    for (const View& view : {arrays.key, arrays.value, arrays.output}) require_dtype(view, stored);
    for (const View& view : {arrays.log_sum, settings.bias}) require_dtype(view, DType::f32);
  }

  /// A block for each tile of queries of each head, and (y) each slice of columns.
  dim3 query_grid(std::int64_t batch, unsigned slices) const {
    return dim3(static_cast<unsigned>(batch * heads * tiles_of(pairs.queries)), slices);
  }
  /// Where the log sum (or another number) of a tile's query stands.
  __device__ std::int64_t row(const Place& place, int index) const {
    return (static_cast<std::int64_t>(place.batch) * heads + place.head) * pairs.queries + place.query +
           index;
  }
  /// Where a block's scores begin that takes a tile of queries of one head; late ones, which causality leaves
  /// the most to do, start first.
  __device__ __forceinline__ Place query_place() const {
    const int tiles = tiles_of(pairs.queries), index = static_cast<int>(blockIdx.x);
    const int head = index / tiles;
    return {head / heads, head % heads, (tiles - 1 - index % tiles) * kTile, 0};
  }
};

}  // namespace needle::cuda::attention
