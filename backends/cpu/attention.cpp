// Attention in tiles with an online softmax (Milakov and Gimelshein 2018; Dao et al. 2022, algorithm 1;
// backward: Dao 2023, algorithm 2): memory grows with the length, never with its square.
#include <cmath>

#include "backends/cpu/attention_tile.h"
#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/loops.h"
#include "backends/cpu/scratch.h"

namespace needle {

namespace {

// --- forward -------------------------------------------------------------------------------------------

/// Scratch of one block of queries; all parts have kQueries columns.
template <class T>
struct ForwardBlock {
  static std::size_t elements(const AttentionCall<T>& call) {
    return static_cast<std::size_t>((call.width + call.value_width + kTile + 3) * kQueries<T>);
  }
  ForwardBlock(const AttentionCall<T>& call, T* memory)
      : query(memory),
        output(query + call.width * kQueries<T>),
        scores(output + call.value_width * kQueries<T>),
        largest(scores + kTile * kQueries<T>),
        total(largest + kQueries<T>),
        decay(total + kQueries<T>) {}
  T* query;    // [width]
  T* output;   // [value width]
  T* scores;   // [kTile]
  T* largest;  // of each query's scores so far
  T* total;    // of each query's exponentials so far
  T* decay;    // by how much the earlier ones shrink when a larger score is met
};

/// Turns scores into exponentials relative to the largest score so far.
template <class T>
void online_softmax(const ForwardBlock<T>& block, std::int64_t rows) {
  T* const largest = block.largest;
  T shift[kQueries<T>];
#pragma omp simd
  for (std::int64_t i = 0; i < kQueries<T>; ++i) shift[i] = largest[i];
  for (std::int64_t j = 0; j < rows; ++j) {
    const T* row = block.scores + j * kQueries<T>;
#pragma omp simd
    for (std::int64_t i = 0; i < kQueries<T>; ++i) shift[i] = row[i] > shift[i] ? row[i] : shift[i];
  }
#pragma omp simd
  for (std::int64_t i = 0; i < kQueries<T>; ++i) {
    const T before = largest[i];
    largest[i] = shift[i];
    // A query that has met no key yet must not be shifted by -infinity.
    shift[i] = shift[i] == -math::infinity<T>() ? T(0) : shift[i];
    block.decay[i] = math::exp(before - shift[i]);
    block.total[i] *= block.decay[i];
  }
  for (std::int64_t j = 0; j < rows; ++j) {
    T* row = block.scores + j * kQueries<T>;
#pragma omp simd
    for (std::int64_t i = 0; i < kQueries<T>; ++i) {
      row[i] = math::exp(row[i] - shift[i]);
      block.total[i] += row[i];
    }
  }
}

template <class T>
void attend_block(const AttentionCall<T>& call, std::int64_t b, std::int64_t h, std::int64_t first,
                  T* memory) {
  constexpr std::int64_t kColumns = kQueries<T>;
  const AttentionArrays& arrays = call.arrays;
  const std::int64_t count = std::min(kColumns, call.queries - first), key_head = h / call.group;
  const ForwardBlock<T> block(call, memory);
  pack_columns(arrays.query, b, h, first, count, static_cast<T>(call.settings.scale), block.query);
  std::fill_n(block.output, call.value_width * kColumns, T(0));
  std::fill_n(block.largest, kColumns, -math::infinity<T>());
  std::fill_n(block.total, kColumns, T(0));
  const Span readable = call.readable_keys(b, first, count);
  for (std::int64_t start = readable.start; start < readable.end; start += kTile) {
    const Span tile{start, std::min(start + kTile, readable.end)};
    small_product(tile_rows<T>(arrays.key, b, key_head, tile), tile.size(), call.width, kColumns, block.query,
                  kColumns, block.scores, kColumns, false);
    call.finish_scores(b, h, first, count, tile, block.scores, nullptr);
    online_softmax(block, tile.size());
    for (std::int64_t c = 0; c < call.value_width && start > readable.start; ++c) {
      T* row = block.output + c * kColumns;
#pragma omp simd
      for (std::int64_t i = 0; i < kColumns; ++i) row[i] *= block.decay[i];
    }
    small_product(tile_columns<T>(arrays.value, b, key_head, tile), call.value_width, tile.size(), kColumns,
                  block.scores, kColumns, block.output, kColumns, true);
  }
  T* log_sum = arrays.log_sum.as<T>() + (b * call.heads + h) * call.queries + first;
  for (std::int64_t i = 0; i < count; ++i) {
    const T total = block.total[i], factor = total > 0 ? T(1) / total : T(0);
    T* to = row_of<T>(arrays.output, b, h, first + i);
    for (std::int64_t c = 0; c < call.value_width; ++c) to[c] = block.output[c * kColumns + i] * factor;
    log_sum[i] = total > 0 ? block.largest[i] + std::log(total) : -math::infinity<T>();
  }
}

template <class T>
void attend(const AttentionCall<T>& call, MemoryPool& pool) {
  const std::int64_t blocks = (call.queries + kQueries<T> - 1) / kQueries<T>,
                     tasks = call.batch * call.heads * blocks;
#pragma omp parallel if (call.batch * call.heads * call.queries * call.keys >= kParallelElements)
  {
    const Scratch<T> memory(pool, ForwardBlock<T>::elements(call));
    // Late blocks read more keys than early ones: dealt out in turn, every thread gets some of each.
#pragma omp for schedule(static, 1)
    for (std::int64_t task = 0; task < tasks; ++task) {
      const std::int64_t head = task / blocks;
      attend_block(call, head / call.heads, head % call.heads, task % blocks * kQueries<T>, memory.data());
    }
  }
}

// --- backward ------------------------------------------------------------------------------------------

/// Scratch of one key head: sums of its key and value gradients, and the parts of one block of queries.
template <class T>
struct BackwardHead {
  static std::size_t elements(const AttentionCall<T>& c) {
    const std::int64_t widths = padded<T>(c.width) + padded<T>(c.value_width);
    return static_cast<std::size_t>(c.keys * widths +
                                    kQueries<T> * (2 * c.width + c.value_width + widths + 3 * kTile + 2));
  }
  BackwardHead(const AttentionCall<T>& c, T* memory) : key_gradient(memory) {
    value_gradient = key_gradient + c.keys * padded<T>(c.width);
    query_columns = value_gradient + c.keys * padded<T>(c.value_width);
    query_gradient = query_columns + c.width * kQueries<T>;
    incoming_columns = query_gradient + c.width * kQueries<T>;
    query_rows = incoming_columns + c.value_width * kQueries<T>;
    incoming_rows = query_rows + kQueries<T> * padded<T>(c.width);
    weights = incoming_rows + kQueries<T> * padded<T>(c.value_width);
    slopes = weights + kTile * kQueries<T>;
    score_gradient = slopes + kTile * kQueries<T>;
    log_sum = score_gradient + kTile * kQueries<T>;
    delta = log_sum + kQueries<T>;
  }
  T *key_gradient, *value_gradient;      // [keys, padded width]
  T *query_columns, *query_gradient;     // [width, kQueries]
  T* incoming_columns;                   // [value width, kQueries]
  T *query_rows, *incoming_rows;         // [kQueries, padded width]
  T *weights, *slopes, *score_gradient;  // [kTile, kQueries]
  T *log_sum, *delta;                    // [kQueries]
};

/// Packs a block of queries, its incoming gradients, and its row statistics.
template <class T>
void load_block(const AttentionCall<T>& call, const AttentionGradients& gradients, std::int64_t b,
                std::int64_t h, std::int64_t first, std::int64_t count, const BackwardHead<T>& head) {
  pack_columns(call.arrays.query, b, h, first, count, static_cast<T>(call.settings.scale),
               head.query_columns);
  pack_columns(gradients.output, b, h, first, count, T(1), head.incoming_columns);
  pack_rows(call.arrays.query, b, h, first, count, head.query_rows);
  pack_rows(gradients.output, b, h, first, count, head.incoming_rows);
  const T* log_sum = call.arrays.log_sum.template as<T>() + (b * call.heads + h) * call.queries + first;
  for (std::int64_t i = 0; i < kQueries<T>; ++i) {
    // A query without keys, or no query at all: every weight becomes exp(-infinity) = 0.
    head.log_sum[i] = i < count && log_sum[i] > -math::infinity<T>() ? log_sum[i] : math::infinity<T>();
    head.delta[i] = 0;
    if (i >= count) continue;
    const T *out = row_of<T>(call.arrays.output, b, h, first + i),
            *incoming = row_of<T>(gradients.output, b, h, first + i);
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t c = 0; c < call.value_width; ++c) sum += out[c] * incoming[c];
    head.delta[i] = sum;
  }
}

/// Weights of a tile again, and the gradient of its scores before the scale.
template <class T>
void differentiate_tile(const AttentionCall<T>& call, const AttentionGradients& gradients, std::int64_t b,
                        std::int64_t h, std::int64_t first, std::int64_t count, Span tile,
                        const BackwardHead<T>& head) {
  constexpr std::int64_t kColumns = kQueries<T>;
  const bool capped = call.settings.soft_cap > 0;
  small_product(tile_rows<T>(call.arrays.key, b, h / call.group, tile), tile.size(), call.width, kColumns,
                head.query_columns, kColumns, head.weights, kColumns, false);
  call.finish_scores(b, h, first, count, tile, head.weights, capped ? head.slopes : nullptr);
  small_product(tile_rows<T>(call.arrays.value, b, h / call.group, tile), tile.size(), call.value_width,
                kColumns, head.incoming_columns, kColumns, head.score_gradient, kColumns, false);
  for (std::int64_t j = 0; j < tile.size(); ++j) {
    T *weights = head.weights + j * kColumns, *slope = head.score_gradient + j * kColumns;
#pragma omp simd
    for (std::int64_t i = 0; i < kColumns; ++i) {
      weights[i] = math::exp(weights[i] - head.log_sum[i]);
      slope[i] = weights[i] == T(0) ? T(0) : weights[i] * (slope[i] - head.delta[i]);
    }
    if (const View& bias = gradients.bias; bias.data) {
      T* to = bias.as<T>() + b * bias.strides[0] + h * bias.strides[1] + first * bias.strides[2] +
              (tile.start + j) * bias.strides[3];
      for (std::int64_t i = 0; i < count; ++i) to[i * bias.strides[2]] = slope[i];
    }
    if (!capped) continue;
    const T* bent = head.slopes + j * kColumns;
#pragma omp simd
    for (std::int64_t i = 0; i < kColumns; ++i) slope[i] *= bent[i];
  }
}

template <class T>
void differentiate_block(const AttentionCall<T>& call, const AttentionGradients& gradients, std::int64_t b,
                         std::int64_t h, std::int64_t first, const BackwardHead<T>& head) {
  constexpr std::int64_t kColumns = kQueries<T>;
  const std::int64_t count = std::min(kColumns, call.queries - first), key_width = padded<T>(call.width);
  const std::int64_t value_width = padded<T>(call.value_width);
  load_block(call, gradients, b, h, first, count, head);
  std::fill_n(head.query_gradient, call.width * kColumns, T(0));
  const Span readable = call.readable_keys(b, first, count);
  for (std::int64_t start = readable.start; start < readable.end; start += kTile) {
    const Span tile{start, std::min(start + kTile, readable.end)};
    differentiate_tile(call, gradients, b, h, first, count, tile, head);
    small_product({head.weights, kColumns, 1}, tile.size(), kColumns, value_width, head.incoming_rows,
                  value_width, head.value_gradient + start * value_width, value_width, true);
    small_product({head.score_gradient, kColumns, 1}, tile.size(), kColumns, key_width, head.query_rows,
                  key_width, head.key_gradient + start * key_width, key_width, true);
    small_product(tile_columns<T>(call.arrays.key, b, h / call.group, tile), call.width, tile.size(),
                  kColumns, head.score_gradient, kColumns, head.query_gradient, kColumns, true);
  }
  if (!gradients.query.data) return;
  const T scale = static_cast<T>(call.settings.scale);
  for (std::int64_t i = 0; i < count; ++i) {
    T* to = row_of<T>(gradients.query, b, h, first + i);
    for (std::int64_t c = 0; c < call.width; ++c) to[c] = head.query_gradient[c * kColumns + i] * scale;
  }
}

/// Writes sums [keys, padded width], times `factor`, where they belong.
template <class T>
void store_rows(const T* sums, T factor, const View& to, std::int64_t b, std::int64_t h) {
  if (!to.data) return;
  const std::int64_t width = to.shape[3], stride = padded<T>(width);
  for (std::int64_t j = 0; j < to.shape[2]; ++j) {
    T* row = row_of<T>(to, b, h, j);
    for (std::int64_t c = 0; c < width; ++c) row[c] = sums[j * stride + c] * factor;
  }
}

template <class T>
void differentiate(const AttentionCall<T>& call, const AttentionGradients& gradients, MemoryPool& pool) {
  // A key head is one task: its sums grow in one order, whatever the number of threads.
#pragma omp parallel if (call.batch * call.heads * call.queries * call.keys >= kParallelElements)
  {
    const Scratch<T> memory(pool, BackwardHead<T>::elements(call));
    const BackwardHead<T> head(call, memory.data());
#pragma omp for schedule(static)
    for (std::int64_t task = 0; task < call.batch * call.key_heads; ++task) {
      const std::int64_t b = task / call.key_heads, key_head = task % call.key_heads;
      std::fill_n(head.key_gradient, call.keys * (padded<T>(call.width) + padded<T>(call.value_width)), T(0));
      for (std::int64_t h = key_head * call.group; h < (key_head + 1) * call.group; ++h) {
        for (std::int64_t first = 0; first < call.queries; first += kQueries<T>) {
          differentiate_block(call, gradients, b, h, first, head);
        }
      }
      store_rows(head.key_gradient, static_cast<T>(call.settings.scale), gradients.key, b, key_head);
      store_rows(head.value_gradient, T(1), gradients.value, b, key_head);
    }
  }
}

}  // namespace

void CpuBackend::attention(const AttentionSettings& settings, const AttentionArrays& arrays) {
  dispatch_computing("attention", arrays.query.dtype, [&](auto tag) {
    attend(AttentionCall<typename decltype(tag)::type>(settings, arrays), pool_);
  });
}

void CpuBackend::attention_gradient(const AttentionSettings& settings, const AttentionArrays& arrays,
                                    const AttentionGradients& gradients) {
  if (gradients.bias.data) fill(0, gradients.bias);
  dispatch_computing("attention", arrays.query.dtype, [&](auto tag) {
    differentiate(AttentionCall<typename decltype(tag)::type>(settings, arrays), gradients, pool_);
  });
}

}  // namespace needle
