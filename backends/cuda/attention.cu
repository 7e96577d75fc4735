// Attention by tiles with a running softmax (Dao et al. 2022, "FlashAttention"; Dao 2023,
// "FlashAttention-2"): a block takes a tile of queries through the tiles of keys that they may read.
#include "backends/cuda/attention_pairs.h"

namespace needle {

namespace {

using namespace cuda::attention;

/// `value` of the threads that have the same rows, combined.
template <class Op>
__device__ __forceinline__ float row_reduce(float value, Op op) {
  NEEDLE_UNROLL
  for (int offset = kSide / 2; offset > 0; offset /= 2)
    value = op(value, __shfl_xor_sync(cuda::kFullMask, value, offset));
  return value;
}

/// The larger one; never a NaN, which then makes its own weight, and the sum, one.
struct LargerNumber {
  __device__ float operator()(float a, float b) const { return b > a ? b : a; }
};

/// Softmax over keys that come a tile at a time: weights relative to the largest score so far, and their sum,
/// of which each thread has its own columns' part.
struct RunningSoftmax {
  float largest[kEach], total[kEach];
  float shrink[kEach];  ///< factor that makes earlier sums relative to the new largest score

  __device__ RunningSoftmax() {
    NEEDLE_UNROLL
    for (int i = 0; i < kEach; ++i) {
      largest[i] = -math::infinity<float>();
      total[i] = 0;
    }
  }

  /// Turns the scores of more keys into weights.
  __device__ __forceinline__ void add(Tile& scores) {
    NEEDLE_UNROLL
    for (int i = 0; i < kEach; ++i) {
      float top = largest[i];
      NEEDLE_UNROLL
      for (int j = 0; j < kEach; ++j) top = LargerNumber{}(top, scores[i][j]);
      top = row_reduce(top, LargerNumber{});
      const float shift = finite_shift(top);
      shrink[i] = math::exp_nonpositive(largest[i] - shift);
      largest[i] = top;
      float sum = 0;
      NEEDLE_UNROLL
      for (int j = 0; j < kEach; ++j) {
        scores[i][j] = math::exp_nonpositive(scores[i][j] - shift);
        sum += scores[i][j];
      }
      total[i] = total[i] * shrink[i] + sum;
    }
  }

  /// Joins the parts of a row's threads.
  __device__ __forceinline__ void finish() {
    NEEDLE_UNROLL
    for (int i = 0; i < kEach; ++i) total[i] = row_reduce(total[i], Sum{});
  }
};

/// A block for each tile of queries of each head, and (y) each slice of the columns.
template <int kColumns>
__global__ void __launch_bounds__(kThreads, 2) attention_kernel(Call call, Heads output) {
  NEEDLE_SHARED(Shared, shared);
  Place place = call.query_place();
  const int first_column = static_cast<int>(blockIdx.y) * kColumns;
  const int rows = call.pairs.queries - place.query;
  const Rows query = call.query.of(place.batch, place.head);
  const Rows key = call.key.of(place.batch, place.head / call.group);
  const Rows value = call.value.of(place.batch, place.head / call.group);
  const Range keys = call.pairs.keys_of_tile(place.query);
  Sums<kColumns> sums = {};
  RunningSoftmax softmax;
  for (place.key = keys.first / kTile * kTile; place.key < keys.last; place.key += kTile) {
    Tile scores = {};
    add_products(scores, shared, query, place.query, key, place.key);
    call.pairs.score<QueriesAsRows>(place, scores, nullptr);
    softmax.add(scores);
    for_own<kColumns / kSide>([&](int i, int c) { sums[i][c] *= softmax.shrink[i]; });
    put_weights(shared, scores);
    add_weighted<kColumns>(sums, shared, rows, value, place.key, first_column);
  }
  softmax.finish();
  NEEDLE_UNROLL
  for (int i = 0; i < kEach; ++i) {
    const float total = softmax.total[i], inverse = total == 0 ? 0 : 1 / total;
    NEEDLE_UNROLL
    for (float& sum : sums[i]) sum *= inverse;
    if (blockIdx.y == 0 && own_column(0) == 0 && own_row(i) < rows)
      call.log_sum[call.row(place, own_row(i))] =
          total == 0 ? -math::infinity<float>() : softmax.largest[i] + math::log(total);
  }
  store_rows<kColumns>(output.of(place.batch, place.head), place.query, first_column, sums, 1);
}

}  // namespace

void CudaBackend::attention(const AttentionSettings& settings, const AttentionArrays& arrays) {
  if (attention_on_tensor_cores(settings, arrays)) return;
  const Call call(settings, arrays);
  dispatch_columns(call.value.width, [&](auto columns) {
    constexpr int kColumns = decltype(columns)::value;
    run(attention_kernel<kColumns>,
        {call.query_grid(arrays.query.shape[0], slices<kColumns>(call.value.width)), dim3(kThreads)}, call,
        Heads(arrays.output));
  });
}

}  // namespace needle
