// Attention by tiles with a running softmax (Dao et al. 2022, "FlashAttention", algorithm 1): memory grows
// with the length, not with its square, and tiles without an allowed pair are not computed.
#include <cmath>
#include <deque>

#include "backends/cpu/attention_block.h"
#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/few_rows.h"
#include "backends/cpu/parallel.h"

namespace needle {

namespace attention {

/// Softmax over keys that come a tile at a time: weights relative to the largest score so far, and their sum.
template <class T>
struct RunningSoftmax {
  alignas(kAlignment) T largest[kQueries], total[kQueries];
  /// Factor that makes earlier sums relative to the new largest score.
  alignas(kAlignment) T shrink[kQueries];

  RunningSoftmax() {
    std::fill_n(largest, kQueries, -math::infinity<T>());
    std::fill_n(total, kQueries, T(0));
  }

  /// Turns the scores of `rows` more keys into weights.
  void add(T* scores, std::int64_t rows) {
    constexpr int kLanes = lanes::kLanes<T>, kVectors = kQueries / kLanes;
    lanes::Vector<T> top[kVectors];
    for (int v = 0; v < kVectors; ++v) top[v] = lanes::at(largest + v * kLanes);
    for (std::int64_t i = 0; i < rows; ++i) {
      for (int v = 0; v < kVectors; ++v) {
        const lanes::Vector<T> score = lanes::at(scores + i * kQueries + v * kLanes);
        top[v] = score > top[v] ? score : top[v];
      }
    }
    alignas(kAlignment) T shift[kQueries];
    for (int v = 0; v < kVectors; ++v) lanes::at(shift + v * kLanes) = top[v];
    for (int q = 0; q < kQueries; ++q) {
      const T previous = largest[q];
      largest[q] = shift[q];
      shift[q] = finite_shift(shift[q]);
      shrink[q] = math::exp_nonpositive(previous - shift[q]);
    }
    alignas(kAlignment) T sums[kQueries] = {};
    for_scores<T>(rows, [&](std::int64_t i, int q) {
      const T weight = math::exp_nonpositive(scores[i] - shift[q]);
      scores[i] = weight;
      sums[q] += weight;
    });
    for (int q = 0; q < kQueries; ++q) total[q] = total[q] * shrink[q] + sums[q];
  }
};

/// The forward pass of one block of queries after another.
template <class T>
class Forward {
 public:
  Forward(MemoryPool& pool, const Call<T>& call)
      : call_(call),
        packed_(pool, call),
        query_(pool, call.width),
        output_(pool, kQueries, call.value_width) {}

  void load(std::int64_t b, std::int64_t key_head) {
    packed_.load(call_, b, key_head);
    values_finite_ = packed_.values_are_finite(call_.keys);
  }

  void run(const QueryBlock& block) {
    query_.load(block, call_.arrays.query, static_cast<T>(call_.settings.scale));
    output_.clear();
    RunningSoftmax<T> softmax;
    for (std::int64_t first = block.any.first; first < block.any.last; first += kKeys) {
      const KeyRange tile{first, std::min(first + kKeys, block.any.last)};
      call_.scores(block, tile, packed_.keys.left(first), query_.columns.rows(0), scores_, nullptr);
      softmax.add(scores_, tile.padded());
      output_.scale(softmax.shrink, block.count);
      if (values_finite_)
        lanes::multiply<T>({scores_, 1, kQueries}, packed_.values.rows(first), output_.rows(0), block.count,
                           output_.stride, tile.count(), true, CausalSumOverKeys{call_.shift(block, tile)});
      else
        add_readable(block, tile);
    }
    store(block, softmax);
  }

 private:
  /// Adds the weighted values one by one, leaving out weights of 0: 0 times infinity would be NaN.
  void add_readable(const QueryBlock& block, const KeyRange& tile) {
    for (std::int64_t i = 0; i < tile.count(); ++i) {
      const T* value = packed_.values.row(tile.first + i);
      for (std::int64_t q = 0; q < block.count; ++q) {
        const T weight = scores_[i * kQueries + q];
        for (std::int64_t c = 0; weight != 0 && c < call_.value_width; ++c)
          output_.row(q)[c] += weight * value[c];
      }
    }
  }

  void store(const QueryBlock& block, const RunningSoftmax<T>& softmax) {
    T* log_sum = call_.log_sum(block);
    T inverse[kQueries];
    for (std::int64_t q = 0; q < block.count; ++q) {
      const T total = softmax.total[q];
      inverse[q] = total == 0 ? T(0) : 1 / total;
      log_sum[q] = total == 0 ? -math::infinity<T>() : softmax.largest[q] + std::log(total);
    }
    output_.scale(inverse, block.count);
    output_.store(call_.arrays.output, block.batch, block.head, block.start, block.count, 1);
  }

  const Call<T>& call_;
  PackedKeys<T> packed_;
  bool values_finite_ = true;
  PackedQueries<T> query_;
  PackedRows<T> output_;
  alignas(kAlignment) T scores_[kKeys * kQueries] = {};
};

/// Up to so many queries, as in decoding, are faster each by itself than as a tile of them; their keys and
/// values are then read where they lie.
constexpr std::int64_t kFewQueries = 8;

/// Numbers of memory that one query needs.
std::int64_t query_memory(const Call<float>& call) {
  return rounded_up(call.width + call.value_width + call.keys, lanes::kLanes<float>);
}

void run_query(const Call<float>& call, const QueryBlock& block, std::int64_t q, float* memory) {
  const AttentionSettings& settings = call.settings;
  const std::int64_t b = block.batch, head = block.head, key_head = head / call.group;
  const std::int64_t first = block.first[q], last = std::max(first, std::int64_t{block.last[q]});
  const auto row = [](const View& x, std::int64_t i, std::int64_t j, std::int64_t k) {
    return x.as<float>() + (x.shape[0] == 1 ? 0 : i * x.strides[0]) +
           (x.shape[1] == 1 ? 0 : j * x.strides[1]) + k * x.strides[2];
  };
  const float masked = -math::infinity<float>();
  float *const query = memory, *const sums = query + call.width, *const scores = sums + call.value_width;
  const float* const from = row(call.arrays.query, b, head, q);
  for (std::int64_t c = 0; c < call.width; ++c) query[c] = static_cast<float>(settings.scale) * from[c];
  const View &key = call.arrays.key, &value = call.arrays.value;
  few_rows::dots(few_rows::Table<float>{query, call.width}, 1,
                 few_rows::Table<float>{row(key, b, key_head, 0), key.strides[2]}, call.width, first, last,
                 [&](std::int64_t, std::int64_t j, float sum) { scores[j] = sum; });
  if (settings.soft_cap > 0) {
    const float cap = static_cast<float>(settings.soft_cap);
#pragma omp simd
    for (std::int64_t j = first; j < last; ++j) scores[j] = cap * math::tanh(scores[j] / cap);
  }
  if (settings.bias.data) {
    const float* const bias = row(settings.bias, b, head, q);
    for (std::int64_t j = first; j < last; ++j) scores[j] += bias[j * settings.bias.strides[3]];
  }
  // By selection, so that whatever a masked score is cannot matter.
  for (std::int64_t j = first; settings.key_mask.data && j < last; ++j) {
    if (!call.is_real(b, j)) scores[j] = masked;
  }
  if (const View& allowed = settings.allowed; allowed.data) {
    const bool* const may = allowed.as<bool>() + (allowed.shape[0] == 1 ? 0 : b * allowed.strides[0]) +
                            (allowed.shape[1] == 1 ? 0 : head * allowed.strides[1]) + q * allowed.strides[2];
    for (std::int64_t j = first; j < last; ++j) {
      if (!may[j * allowed.strides[3]]) scores[j] = masked;
    }
  }
  float largest = masked, total = 0;
#pragma omp simd reduction(max : largest)
  for (std::int64_t j = first; j < last; ++j) largest = scores[j] > largest ? scores[j] : largest;
  const float shift = finite_shift(largest);
#pragma omp simd reduction(+ : total)
  for (std::int64_t j = first; j < last; ++j) {
    scores[j] = math::exp_nonpositive(scores[j] - shift);
    total += scores[j];
  }
  std::fill_n(sums, call.value_width, 0.0f);
  for (std::int64_t j = first; j < last; ++j) {
    if (scores[j] == 0) continue;  // 0 times infinity would be NaN
    const float weight = scores[j];
    const float* const numbers = row(value, b, key_head, j);
#pragma omp simd
    for (std::int64_t c = 0; c < call.value_width; ++c) sums[c] += weight * numbers[c];
  }
  const float inverse = total == 0 ? 0.0f : 1 / total;
  float* const to = row(call.arrays.output, b, head, q);
  for (std::int64_t c = 0; c < call.value_width; ++c) to[c] = inverse * sums[c];
  call.log_sum(block)[q] = total == 0 ? masked : largest + std::log(total);
}

void forward_few(MemoryPool& pool, const Call<float>& call) {
  const std::int64_t tasks = call.batch * call.heads;
  const bool shared = tasks * call.queries * call.keys * call.width >= kParallelElements;
  const int threads = shared ? available_threads() : 1;
  const std::int64_t size = query_memory(call);
  const Scratch<float> memory(pool, static_cast<std::size_t>(threads * size));
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (std::int64_t task = 0; task < tasks; ++task) {
    float* const own = memory.data() + (threads > 1 ? thread_number() : 0) * size;
    const QueryBlock block = call.block(task / call.heads, task % call.heads, 0);
    for (std::int64_t q = 0; q < call.queries; ++q) run_query(call, block, q, own);
  }
}

template <class T>
void forward(MemoryPool& pool, const Call<T>& call) {
  if (call.batch * call.key_heads == 0 || call.queries == 0) return;
  if constexpr (std::is_same_v<T, float>) {
    if (call.queries <= kFewQueries && call.arrays.query.dtype == DType::f32) return forward_few(pool, call);
  }
  const std::int64_t key_heads = call.batch * call.key_heads;
  // With few heads several tasks share one: each takes every runs-th block, for early blocks are cheap when
  // causal. No sum depends on which task makes it.
  const std::int64_t runs = std::clamp<std::int64_t>(4 * available_threads() / key_heads, 1, call.blocks);
  const int threads = call.is_large() ? available_threads() : 1;
  // Made here, since what they throw for want of memory must not leave a parallel region.
  std::deque<Forward<T>> passes;
  for (int thread = 0; thread < threads; ++thread) passes.emplace_back(pool, call);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    Forward<T>& pass = passes[static_cast<std::size_t>(threads > 1 ? thread_number() : 0)];
#pragma omp for schedule(static)
    for (std::int64_t task = 0; task < key_heads * runs; ++task) {
      const std::int64_t b = task / runs / call.key_heads, key_head = task / runs % call.key_heads;
      pass.load(b, key_head);
      for (std::int64_t head = key_head * call.group; head < (key_head + 1) * call.group; ++head) {
        for (std::int64_t i = task % runs; i < call.blocks; i += runs) pass.run(call.block(b, head, i));
      }
    }
  }
}

}  // namespace attention

void CpuBackend::attention(const AttentionSettings& settings, const AttentionArrays& arrays) {
  attention::dispatch_call(settings, arrays, [&](const auto& call) { attention::forward(pool_, call); });
}

}  // namespace needle
