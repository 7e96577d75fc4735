// The gradient of flash attention on tensor cores (Dao 2023, "FlashAttention-2", algorithm 2), for bf16 and
// f16: weights are made again from the log sums. One kernel in two directions: a block sums the gradient of
// a tile of queries over the keys, or those of a tile of keys and values over the queries of all heads that
// they serve, in order. So no two blocks add to one sum, and scores never leave the registers.
#include "backends/cuda/attention_tensor_cores.h"

namespace needle {

using namespace cuda;

namespace {

enum class Of { queries, keys };

constexpr int kColumns = 32;  // one for each lane of a warp
template <int kWidth>
constexpr int kRowTiles = 128 / kWidth;  // so many sums the registers hold
template <int kWidth>
constexpr int kRows = 16 * kWarps* kRowTiles<kWidth>;

/// Query and incoming gradient, or key and value: what scores are products of, and what the gradients of
/// weights are.
template <class T>
struct Side {
  HeadRows<T> scored, valued;
  RealRows real;
};

template <class T, int kWidth>
struct Shared {
  TileRow<T, kWidth> scored[kRows<kWidth>], valued[kRows<kWidth>];
  struct {
    TileRow<T, kWidth> scored[kColumns], valued[kColumns];
  } right[2];
};

/// Of a query: the logarithm in base 2 of the sum of its exponentials, and the mean by weight of the incoming
/// gradients, which a softmax's gradient takes off each.
struct QueryState {
  float shift, mean_slope;
};
struct QueryStates {
  QueryState* data;  // [batch, heads, queries]
  int heads, queries;

  __device__ std::int64_t index(int batch, int head, int query) const {
    return (static_cast<std::int64_t>(batch) * heads + head) * queries + query;
  }
  __device__ __forceinline__ QueryState get(int batch, int head, int query) const {
    return query < queries ? data[index(batch, head, query)] : QueryState{0.0f, 0.0f};
  }
};

constexpr int kStateThreads = 128;
template <int kWidth>
constexpr int kStateQueries = kStateThreads / (kWidth / 8);  // of a block; a thread has 16 bytes of a row

template <class T, int kWidth>
__global__ void __launch_bounds__(kStateThreads)
    state_kernel(HeadRows<T> output, HeadRows<T> incoming, const float* log_sum, QueryStates states) {
  struct alignas(16) Part {
    T x[8];
  };
  constexpr int kLanes = kWidth / 8;
  const int batch = static_cast<int>(blockIdx.z), head = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x), part = thread % kLanes;
  const int query = static_cast<int>(blockIdx.x) * kStateQueries<kWidth> + thread / kLanes;
  float sum = 0.0f;
  if (query < states.queries) {
    const Part a = reinterpret_cast<const Part*>(output.row(batch, head, query))[part],
               b = reinterpret_cast<const Part*>(incoming.row(batch, head, query))[part];
    NEEDLE_UNROLL
    for (int i = 0; i < 8; ++i) sum += static_cast<float>(a.x[i]) * static_cast<float>(b.x[i]);
  }
  NEEDLE_UNROLL
  for (int offset = kLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(kFullMask, sum, offset);
  if (query >= states.queries || part != 0) return;
  const std::int64_t i = states.index(batch, head, query);
  // Without keys all scores are -infinity, and so are they relative to anything finite.
  const float shift = log_sum[i] == -INFINITY ? 0.0f : log_sum[i] * std::numbers::log2e_v<float>;
  states.data[i] = {shift, sum};
}

template <class T>
struct Call {
  Side<T> left, right;
  QueryStates states;
  HeadRows<T> of_scored, of_valued;  // gradients of the left rows, or without data
  Band band;                         // left x right
  int group;                         // a key head serves so many heads
  float scale;
};

template <Of kOf, class T, int kWidth>
__global__ void __launch_bounds__(kAttentionThreads) gradient_kernel(Call<T> call) {
  constexpr int kTiles = kRowTiles<kWidth>, kWarpRows = 16 * kTiles;
  using Tiles = Shared<T, kWidth>;
  NEEDLE_DYNAMIC_SHARED(Tiles, shared);
  const Side<T>&left = call.left, &right = call.right;
  const int batch = static_cast<int>(blockIdx.z), head = static_cast<int>(blockIdx.y);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * kWarpRows;
  const int first_row = static_cast<int>(blockIdx.x) * kRows<kWidth>, row = first_row + warp_row;

  // Steps: the tiles of columns that the rows may meet, of one head after the other.
  const int first_head = kOf == Of::keys ? head * call.group : head / call.group;
  const int begin = call.band.begin(first_row),
            end = call.band.end(first_row, kRows<kWidth>, right.real.count);
  const int tiles = max(0, end - begin + kColumns - 1) / kColumns;
  const int steps = kOf == Of::keys ? call.group * tiles : tiles;
  const auto fetch = [&](int step) {
    const int right_head = first_head + step / tiles, column = begin + step % tiles * kColumns;
    const Bits<kColumns> real = real_bits<kColumns>(right.real, batch, column);
    auto& to = shared->right[step % 2];
    copy_rows(to.scored, right.scored.row(batch, right_head, column), right.scored.row_stride, real);
    copy_rows(to.valued, right.valued.row(batch, right_head, column), right.valued.row_stride, real);
  };
  {
    const Bits<kRows<kWidth>> real = real_bits<kRows<kWidth>>(left.real, batch, first_row);
    copy_rows(shared->scored, left.scored.row(batch, head, first_row), left.scored.row_stride, real);
    copy_rows(shared->valued, left.valued.row(batch, head, first_row), left.valued.row_stride, real);
  }
  if (steps > 0) fetch(0);

  QueryState of_row[kTiles][2];
  NEEDLE_UNROLL
  for (int i = 0; kOf == Of::queries && i < 2 * kTiles; ++i)
    of_row[i / 2][i % 2] = call.states.get(batch, head, row + 8 * i + lane / 4);
  FragmentC of_scored[kTiles][kWidth / 8] = {}, of_valued[kTiles][kWidth / 8] = {};
  for (int step = 0; step < steps; ++step) {
    wait_for_copies();
    __syncthreads();  // this tile is there, and nobody reads the one before any more
    if (step + 1 < steps) fetch(step + 1);
    const auto& tile = shared->right[step % 2];
    const int column = begin + step % tiles * kColumns;
    if (!call.band.touches(row, kWarpRows, column, kColumns)) continue;

    QueryState of_lane = {0.0f, 0.0f};
    if (kOf == Of::keys) of_lane = call.states.get(batch, first_head + step / tiles, column + lane);
    FragmentC weights[kTiles][kColumns / 8], slopes[kTiles][kColumns / 8];
    multiply_rows<kTiles, kColumns>(weights, &shared->scored[warp_row], tile.scored);
    scale_and_mask<kTiles, kColumns>(weights, call.scale, call.band,
                                     real_bits<kColumns>(right.real, batch, column), row, column);
    multiply_rows<kTiles, kColumns>(slopes, &shared->valued[warp_row], tile.valued);
    NEEDLE_UNROLL
    for (int i = 0; i < kColumns / 4; ++i) {
      QueryState of_column = {0.0f, 0.0f};
      if (kOf == Of::keys) {
        const int source = i / 2 * 8 + lane % 4 * 2 + i % 2;
        of_column = {__shfl_sync(kFullMask, of_lane.shift, source),
                     __shfl_sync(kFullMask, of_lane.mean_slope, source)};
      }
      NEEDLE_UNROLL
      for (int m = 0; m < kTiles; ++m) {
        NEEDLE_UNROLL
        for (int r = 0; r < 2; ++r) {
          const QueryState& query = kOf == Of::keys ? of_column : of_row[m][r];
          float &weight = weights[m][i / 2].x[2 * r + i % 2], &slope = slopes[m][i / 2].x[2 * r + i % 2];
          weight = exp2f(weight - query.shift);
          slope = weight == 0.0f ? 0.0f : weight * (slope - query.mean_slope);
        }
      }
    }
    if (kOf == Of::keys) add_weighted_rows(of_valued, weights, tile.valued);
    add_weighted_rows(of_scored, slopes, tile.scored);
  }

  NEEDLE_UNROLL
  for (int i = 0; i < kTiles * kWidth / 8 * 4; ++i) {
    of_scored[i / (kWidth / 2)][i / 4 % (kWidth / 8)].x[i % 4] *= call.scale;
  }
  wait_for_copies();
  __syncthreads();  // where there was no step to wait for
  if (call.of_scored.data)
    store_rows(call.of_scored.row(batch, head, row), call.of_scored.row_stride, of_scored,
               &shared->scored[warp_row], left.real, batch, row);
  if (call.of_valued.data)
    store_rows(call.of_valued.row(batch, head, row), call.of_valued.row_stride, of_valued,
               &shared->valued[warp_row], left.real, batch, row);
}

}  // namespace

bool CudaBackend::attention_gradient_on_tensor_cores(const AttentionSettings& settings,
                                                     const AttentionArrays& arrays,
                                                     const AttentionGradients& gradients) {
  const std::vector<View> others{gradients.output, gradients.query, gradients.key, gradients.value};
  return dispatch_tensor_cores(index_, settings, arrays, others, [&](auto tag, auto width) {
    using T = typename decltype(tag)::type;
    const AttentionSizes sizes = sizes_of(settings, arrays);
    const std::int64_t batch = arrays.query.shape[0];
    const auto grid = [&](int rows, int rows_of_block, int heads) {
      return dim3(static_cast<unsigned>((rows + rows_of_block - 1) / rows_of_block),
                  static_cast<unsigned>(heads), static_cast<unsigned>(batch));
    };
    const auto memory = scratch<QueryState>(batch * sizes.heads * sizes.queries);
    const QueryStates states{memory.data(), sizes.heads, sizes.queries};
    run(state_kernel<T, width>, {grid(sizes.queries, kStateQueries<width>, sizes.heads), dim3(kStateThreads)},
        arrays.output, gradients.output, arrays.log_sum.as<float>(), states);

    const Side<T> queries{arrays.query, gradients.output, sizes.real_queries},
        keys{arrays.key, arrays.value, sizes.real_keys};
    constexpr std::size_t kBytes = sizeof(Shared<T, width>);
    if (gradients.query.data) {
      run(gradient_kernel<Of::queries, T, width>,
          {grid(sizes.queries, kRows<width>, sizes.heads), dim3(kAttentionThreads), kBytes},
          Call<T>{queries, keys, states, gradients.query, View(), sizes.band, sizes.group, sizes.scale});
    }
    if (gradients.key.data || gradients.value.data) {
      run(gradient_kernel<Of::keys, T, width>,
          {grid(sizes.keys, kRows<width>, sizes.key_heads), dim3(kAttentionThreads), kBytes},
          Call<T>{keys, queries, states, gradients.key, gradients.value, sizes.band.transposed(), sizes.group,
                  sizes.scale});
    }
  });
}

}  // namespace needle
