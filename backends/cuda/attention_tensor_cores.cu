// Flash attention on tensor cores (Dao 2023, "FlashAttention-2", algorithm 1), for bf16 and f16. Scores,
// weights and output stay in registers: the layout of a product's result is that of the next one's left
// operand. What is not finite in a value stays behind the key mask, but not behind causality or a window
// within one tile, where its weight is 0.
#include "backends/cuda/attention_tensor_cores.h"

namespace needle {

using namespace cuda;

namespace {

constexpr int kRowTiles = 2, kQueries = 16 * kRowTiles * kWarps, kKeys = 64;

template <class T, int kWidth>
struct Shared {
  TileRow<T, kWidth> query[kQueries], key[kKeys], value[kKeys];
};

template <class T>
struct Call {
  HeadRows<T> query, key, value, output;
  float* log_sum;
};

/// Softmax over keys that come a tile at a time, for this lane's rows: scores are in base 2.
struct RunningSoftmax {
  float largest[kRowTiles][2], total[kRowTiles][2];  // the total is of this lane's columns alone

  __device__ void clear() {
    NEEDLE_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      NEEDLE_UNROLL
      for (int r = 0; r < 2; ++r) largest[m][r] = -INFINITY, total[m][r] = 0.0f;
    }
  }

  /// Turns scores into weights relative to the largest so far, and makes earlier sums relative to it too.
  template <int kSums>
  __device__ __forceinline__ void add(FragmentC (&scores)[kRowTiles][kKeys / 8],
                                      FragmentC (&sums)[kRowTiles][kSums]) {
    NEEDLE_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      NEEDLE_UNROLL
      for (int r = 0; r < 2; ++r) {
        float top = largest[m][r];  // NaN may be lost here: the total keeps it
        NEEDLE_UNROLL
        for (int j = 0; j < kKeys / 8; ++j)
          top = fmaxf(top, fmaxf(scores[m][j].x[2 * r], scores[m][j].x[2 * r + 1]));
        top = fmaxf(top, __shfl_xor_sync(kFullMask, top, 1));
        top = fmaxf(top, __shfl_xor_sync(kFullMask, top, 2));
        const float shift = top == -INFINITY ? 0.0f : top;
        const float shrink = exp2f(largest[m][r] - shift);
        largest[m][r] = top;
        float sum = total[m][r] * shrink;
        NEEDLE_UNROLL
        for (int j = 0; j < kKeys / 8; ++j) {
          NEEDLE_UNROLL
          for (int c = 0; c < 2; ++c) {
            float& weight = scores[m][j].x[2 * r + c];
            weight = exp2f(weight - shift);
            sum += weight;
          }
        }
        total[m][r] = sum;
        NEEDLE_UNROLL
        for (int j = 0; j < kSums; ++j) sums[m][j].x[2 * r] *= shrink, sums[m][j].x[2 * r + 1] *= shrink;
      }
    }
  }
};

template <class T, int kWidth>
__global__ void __launch_bounds__(kAttentionThreads) attention_kernel(Call<T> call, AttentionSizes sizes) {
  using Tiles = Shared<T, kWidth>;
  NEEDLE_DYNAMIC_SHARED(Tiles, shared);
  const int batch = static_cast<int>(blockIdx.z), head = static_cast<int>(blockIdx.y);
  const int key_head = head / sizes.group, warp_row = static_cast<int>(threadIdx.x) / 32 * 16 * kRowTiles;
  // Causal blocks take the longer the later their queries: those go first.
  const int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kQueries,
            query = first_query + warp_row;
  const int begin = sizes.band.begin(first_query), end = sizes.band.end(first_query, kQueries, sizes.keys);

  const auto fetch = [&](TileRow<T, kWidth>* to, const HeadRows<T>& from, int first,
                         const Bits<kKeys>& real) {
    copy_rows(to, from.row(batch, key_head, first), from.row_stride, real);
  };
  copy_rows(shared->query, call.query.row(batch, head, first_query), call.query.row_stride,
            real_bits<kQueries>(sizes.real_queries, batch, first_query));
  Bits<kKeys> real = real_bits<kKeys>(sizes.real_keys, batch, begin);
  fetch(shared->key, call.key, begin, real);

  FragmentC sum[kRowTiles][kWidth / 8] = {};
  RunningSoftmax softmax;
  softmax.clear();
  for (int key = begin; key < end; key += kKeys) {
    const bool any = sizes.band.touches(query, 16 * kRowTiles, key, kKeys);
    FragmentC scores[kRowTiles][kKeys / 8];
    wait_for_copies();
    __syncthreads();  // the keys are there, and nobody reads the values before any more
    fetch(shared->value, call.value, key, real);
    if (any) {
      multiply_rows<kRowTiles, kKeys>(scores, &shared->query[warp_row], shared->key);
      scale_and_mask<kRowTiles, kKeys>(scores, sizes.scale, sizes.band, real, query, key);
      softmax.add(scores, sum);
    }
    real = real_bits<kKeys>(sizes.real_keys, batch, key + kKeys);
    wait_for_copies();
    __syncthreads();  // the values are there, and nobody reads the keys any more
    if (key + kKeys < end) fetch(shared->key, call.key, key + kKeys, real);
    if (any) add_weighted_rows(sum, scores, shared->value);
  }

  NEEDLE_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    NEEDLE_UNROLL
    for (int r = 0; r < 2; ++r) {
      float total = softmax.total[m][r];
      total += __shfl_xor_sync(kFullMask, total, 1);
      total += __shfl_xor_sync(kFullMask, total, 2);
      const float inverse = total == 0.0f ? 0.0f : 1.0f / total;
      NEEDLE_UNROLL
      for (int j = 0; j < kWidth / 8; ++j) sum[m][j].x[2 * r] *= inverse, sum[m][j].x[2 * r + 1] *= inverse;
      const int lane = static_cast<int>(threadIdx.x % 32), row = query + 16 * m + lane / 4 + 8 * r;
      if (lane % 4 == 0 && row < sizes.queries)
        call.log_sum[(static_cast<std::int64_t>(batch) * sizes.heads + head) * sizes.queries + row] =
            softmax.largest[m][r] * std::numbers::ln2_v<float> + logf(total);
    }
  }
  wait_for_copies();
  __syncthreads();  // where there was no key to wait for
  store_rows(call.output.row(batch, head, query), call.output.row_stride, sum, &shared->query[warp_row],
             sizes.real_queries, batch, query);
}

}  // namespace

bool CudaBackend::attention_on_tensor_cores(const AttentionSettings& settings,
                                            const AttentionArrays& arrays) {
  return dispatch_tensor_cores(index_, settings, arrays, {}, [&](auto tag, auto width) {
    using T = typename decltype(tag)::type;
    const AttentionSizes sizes = sizes_of(settings, arrays);
    const Call<T> call{arrays.query, arrays.key, arrays.value, arrays.output, arrays.log_sum.as<float>()};
    const dim3 grid(static_cast<unsigned>((sizes.queries + kQueries - 1) / kQueries),
                    static_cast<unsigned>(sizes.heads), static_cast<unsigned>(arrays.query.shape[0]));
    run(attention_kernel<T, width>, {grid, dim3(kAttentionThreads), sizeof(Shared<T, width>)}, call, sizes);
  });
}

}  // namespace needle
