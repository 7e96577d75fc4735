// The gradient of attention by tiles (Dao 2023, "FlashAttention-2", algorithm 2): weights are made again from
// the log sums that the forward pass kept.
#include <deque>

#include "backends/cpu/attention_block.h"
#include "backends/cpu/cpu_backend.h"

namespace needle {

namespace attention {

/// The backward pass of one key head after another: sums up its key and value gradients over the blocks of
/// all queries that it serves.
template <class T>
class Backward {
 public:
  Backward(MemoryPool& pool, const Call<T>& call, const AttentionGradients& gradients)
      : call_(call),
        gradients_(gradients),
        packed_(pool, call),
        sums_(pool, call),
        query_(pool, call.width),
        incoming_(pool, call.value_width),
        query_sum_(pool, kQueries, call.width),
        output_row_(pool, 1, call.value_width) {}

  void run(std::int64_t b, std::int64_t key_head) {
    packed_.load(call_, b, key_head);
    sums_.clear();
    for (std::int64_t head = key_head * call_.group; head < (key_head + 1) * call_.group; ++head) {
      for (std::int64_t i = 0; i < call_.blocks; ++i) add_block(call_.block(b, head, i));
    }
    // The packed queries carry the scale already.
    if (gradients_.key.data) sums_.keys.store(gradients_.key, b, key_head, 0, call_.keys, 1);
    if (gradients_.value.data) sums_.values.store(gradients_.value, b, key_head, 0, call_.keys, 1);
  }

 private:
  void add_block(const QueryBlock& block) {
    load(block);
    for (std::int64_t first = block.any.first; first < block.any.last; first += kKeys) {
      const KeyRange tile{first, std::min(first + kKeys, block.any.last)};
      differentiate_scores(block, tile);
      const std::int64_t shift = call_.shift(block, tile);
      lanes::multiply<T>({weights_, kQueries, 1}, incoming_.rows.rows(0), sums_.values.rows(first),
                         tile.count(), sums_.values.stride, block.count, true, CausalSumOverQueries{shift});
      lanes::multiply<T>({slopes_, kQueries, 1}, query_.rows.rows(0), sums_.keys.rows(first), tile.count(),
                         sums_.keys.stride, block.count, true, CausalSumOverQueries{shift});
      lanes::multiply<T>({slopes_, 1, kQueries}, packed_.keys.rows(first), query_sum_.rows(0), block.count,
                         query_sum_.stride, tile.count(), true, CausalSumOverKeys{shift});
    }
    if (gradients_.query.data) {
      query_sum_.store(gradients_.query, block.batch, block.head, block.start, block.count, scale());
    }
  }

  void load(const QueryBlock& block) {
    query_.load(block, call_.arrays.query, scale());
    incoming_.load(block, gradients_.output, 1);
    query_sum_.clear();
    const View& output = call_.arrays.output;
    const std::int64_t start =
        block.batch * output.strides[0] + block.head * output.strides[1] + block.start * output.strides[2];
    for (std::int64_t q = 0; q < block.count; ++q) {
      const T *row =
                  read_run(output, start + q * output.strides[2], 1, call_.value_width, output_row_.row(0)),
              *incoming = incoming_.rows.row(q);
      T sum = 0;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t c = 0; c < call_.value_width; ++c) sum += row[c] * incoming[c];
      mean_slope_[q] = sum;
      shift_[q] = finite_shift(call_.log_sum(block)[q]);
    }
  }

  /// Sets weights_ to the tile's weights and slopes_ to the gradient of the products of query and key.
  void differentiate_scores(const QueryBlock& block, const KeyRange& tile) {
    const bool capped = call_.settings.soft_cap > 0;
    call_.scores(block, tile, packed_.keys.left(tile.first), query_.columns.rows(0), weights_,
                 capped ? cap_slopes_ : nullptr);
    lanes::multiply<T>(packed_.values.left(tile.first), incoming_.columns.rows(0), {slopes_, kQueries},
                       tile.count(), block.count, call_.value_width, false,
                       CausalScores{call_.shift(block, tile)});
    for_scores<T>(tile.padded(), [&](std::int64_t i, int q) {
      const T weight = math::exp_nonpositive(weights_[i] - shift_[q]);
      weights_[i] = weight;
      slopes_[i] = weight == T(0) ? T(0) : weight * (slopes_[i] - mean_slope_[q]);
    });
    if (gradients_.bias.data) {
      call_.template for_pairs<T>(gradients_.bias, block, tile,
                                  [&](std::int64_t i, T& gradient) { gradient = slopes_[i]; });
    }
    if (capped) {
      for_scores<T>(tile.padded(), [&](std::int64_t i, int) {
        slopes_[i] = slopes_[i] == T(0) ? T(0) : slopes_[i] * cap_slopes_[i];
      });
    }
  }

  T scale() const { return static_cast<T>(call_.settings.scale); }

  const Call<T>& call_;
  const AttentionGradients& gradients_;
  PackedKeys<T> packed_, sums_;
  PackedQueries<T> query_, incoming_;
  PackedRows<T> query_sum_, output_row_;
  alignas(kAlignment) T weights_[kKeys * kQueries] = {};
  alignas(kAlignment) T slopes_[kKeys * kQueries] = {};
  alignas(kAlignment) T cap_slopes_[kKeys * kQueries] = {};
  T shift_[kQueries] = {};
  /// The mean of a row's incoming gradients, by weight: what a softmax's gradient takes off each.
  T mean_slope_[kQueries] = {};
};

template <class T>
void backward(MemoryPool& pool, const Call<T>& call, const AttentionGradients& gradients) {
  // One task a key head, so that its sums grow in one order for any number of threads.
  const int threads = call.is_large() ? available_threads() : 1;
  std::deque<Backward<T>> passes;  // outside of the parallel region, as in attention.cpp
  for (int thread = 0; thread < threads; ++thread) passes.emplace_back(pool, call, gradients);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    Backward<T>& pass = passes[static_cast<std::size_t>(threads > 1 ? thread_number() : 0)];
#pragma omp for schedule(static)
    for (std::int64_t task = 0; task < call.batch * call.key_heads; ++task) {
      pass.run(task / call.key_heads, task % call.key_heads);
    }
  }
}

}  // namespace attention

void CpuBackend::attention_gradient(const AttentionSettings& settings, const AttentionArrays& arrays,
                                    const AttentionGradients& gradients) {
  // Tiles without an allowed pair are never visited.
  if (gradients.bias.data) fill(0, gradients.bias);
  attention::dispatch_call(settings, arrays,
                           [&](const auto& call) { attention::backward(pool_, call, gradients); });
}

}  // namespace needle
