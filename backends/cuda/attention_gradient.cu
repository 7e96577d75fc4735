// The gradient of attention by tiles (Dao 2023, "FlashAttention-2", algorithm 2): weights are made again from
// the log sums that the forward pass kept. One kernel goes from queries through keys, for the gradients of
// query and bias; another one from keys through queries, for those of key and value.
#include "backends/cuda/attention_pairs.h"

namespace needle {

namespace {

using namespace cuda::attention;

/// What the kernels get besides the call. The mean slope of a query is that of its output's gradient, by
/// weight: what a softmax's gradient takes off each.
struct Gradients {
  Heads incoming, query, key, value;
  PairArray<float> bias;
  float* mean_slope;

  Gradients(const AttentionGradients& gradients, float* mean_slopes)
      : incoming(gradients.output),
        query(gradients.query),
        key(gradients.key),
        value(gradients.value),
        bias(gradients.bias),
        mean_slope(mean_slopes) {}
};

constexpr int kRowThreads = 256;

/// mean_slope = the sum over a row of output times its gradient; a warp for each query.
__global__ void __launch_bounds__(kRowThreads)
    mean_slope_kernel(Call call, Heads output, Gradients gradients, std::int64_t count) {
  const int lane = static_cast<int>(threadIdx.x) % warpSize;
  for (std::int64_t i = cuda::grid_index() / warpSize; i < count; i += cuda::grid_stride() / warpSize) {
    const int query = static_cast<int>(i % output.rows), pair = static_cast<int>(i / output.rows);
    const int batch = pair / call.heads, head = pair % call.heads;
    const Rows y = output.of(batch, head), dy = gradients.incoming.of(batch, head);
    float sum = 0;
    for (int c = lane; c < y.width; c += warpSize)
      sum += cuda::load<float>(y.row(query), c) * cuda::load<float>(dy.row(query), c);
    sum = cuda::warp_reduce(sum, Sum{});
    if (lane == 0) gradients.mean_slope[i] = sum;
  }
}

/// factor times slope, where a factor of 0 makes it 0, whatever the slope.
__device__ inline float selected_product(float factor, float slope) {
  return factor == 0 ? 0 : factor * slope;
}

/// Turns a tile's products of query and key into weights, and those of incoming gradient and value, which are
/// where the tile of weights is to be (registers are scarce), into the gradient of the capped scores.
template <class Layout>
__device__ __forceinline__ void differentiate(const Call& call, const Gradients& gradients,
                                              const Place& place, Shared& shared, Tile& weights,
                                              Tile& slopes) {
  for_own([&](int i, int j) { slopes[i][j] = own_weight(shared, i, j); });
  call.pairs.score<Layout>(place, weights, &shared);
  float shift[kEach], mean_slope[kEach];  // of the queries that this thread has scores of
  NEEDLE_UNROLL
  for (int i = 0; i < kEach; ++i) {
    const int query = Layout::query(i, i);
    const bool inside = place.query + query < call.pairs.queries;
    const std::int64_t row = call.row(place, query);
    shift[i] = inside ? finite_shift(call.log_sum[row]) : 0;
    mean_slope[i] = inside ? gradients.mean_slope[row] : 0;
  }
  for_own([&](int i, int j) {
    const int query = Layout::own_query(i, j);
    weights[i][j] = math::exp_nonpositive(weights[i][j] - shift[query]);
    slopes[i][j] = selected_product(weights[i][j], slopes[i][j] - mean_slope[query]);
  });
}

/// Makes it that of the products, now that differentiate() has left the soft cap's derivatives.
__device__ __forceinline__ void pass_cap(const Call& call, Shared& shared, Tile& slopes) {
  if (call.pairs.soft_cap > 0)
    for_own([&](int i, int j) { slopes[i][j] = selected_product(slopes[i][j], own_weight(shared, i, j)); });
}

/// A block for each tile of queries of each head, and (y) each slice of the columns.
template <int kColumns>
__global__ void __launch_bounds__(kThreads, 2) query_gradient_kernel(Call call, Gradients gradients) {
  NEEDLE_SHARED(Shared, shared);
  Place place = call.query_place();
  const int first_column = static_cast<int>(blockIdx.y) * kColumns;
  const Range keys = call.pairs.keys_of_tile(place.query);
  Sums<kColumns> sums = {};
  for (place.key = keys.first / kTile * kTile; place.key < keys.last; place.key += kTile) {
    const Rows query = call.query.of(place.batch, place.head);
    const Rows incoming = gradients.incoming.of(place.batch, place.head);
    const Rows key = call.key.of(place.batch, place.head / call.group);
    const Rows value = call.value.of(place.batch, place.head / call.group);
    Tile weights = {}, slopes = {};
    add_products(slopes, shared, incoming, place.query, value, place.key);
    put_weights(shared, slopes);
    add_products(weights, shared, query, place.query, key, place.key);
    differentiate<QueriesAsRows>(call, gradients, place, shared, weights, slopes);
    if (gradients.bias.data && blockIdx.y == 0)
      call.pairs.for_pairs<QueriesAsRows>(gradients.bias, place,
                                          [&](int i, int j, float& gradient) { gradient = slopes[i][j]; });
    if (!gradients.query.data) continue;
    pass_cap(call, shared, slopes);
    put_weights(shared, slopes);
    add_weighted<kColumns>(sums, shared, call.pairs.queries - place.query, key, place.key, first_column);
  }
  if (!gradients.query.data) return;
  store_rows<kColumns>(gradients.query.of(place.batch, place.head), place.query, first_column, sums,
                       call.pairs.scale);
}

/// A block for each tile of keys of each key head, and (y) each slice of the columns. It goes through the
/// queries of all heads that the key head serves.
template <int kColumns>
__global__ void __launch_bounds__(kThreads, kColumns < 128 ? 2 : 1)
    key_gradient_kernel(Call call, Gradients gradients, int key_heads) {
  NEEDLE_SHARED(Shared, shared);
  const int tiles = tiles_of(call.pairs.keys), index = static_cast<int>(blockIdx.x);
  const int batch = index / tiles / key_heads, key_head = index / tiles % key_heads;
  const int first_key = index % tiles * kTile, rows = call.pairs.keys - first_key;
  const int first_column = static_cast<int>(blockIdx.y) * kColumns;
  const bool key_wanted = gradients.key.data && first_column < call.key.width;
  const bool value_wanted = gradients.value.data && first_column < call.value.width;
  const Range queries = call.pairs.queries_of_tile(first_key);
  Sums<kColumns> key_sums = {}, value_sums = {};
  for (int head = key_head * call.group; head < (key_head + 1) * call.group; ++head) {
    for (int first_query = queries.first / kTile * kTile; first_query < queries.last; first_query += kTile) {
      const Place place{batch, head, first_query, first_key};
      const Rows query = call.query.of(batch, head), key = call.key.of(batch, key_head);
      const Rows value = call.value.of(batch, key_head), incoming = gradients.incoming.of(batch, head);
      Tile weights = {}, slopes = {};
      if (key_wanted) add_products(slopes, shared, value, first_key, incoming, first_query);
      put_weights(shared, slopes);
      add_products(weights, shared, key, first_key, query, first_query);
      differentiate<KeysAsRows>(call, gradients, place, shared, weights, slopes);
      pass_cap(call, shared, slopes);
      if (value_wanted) {
        put_weights(shared, weights);
        add_weighted<kColumns>(value_sums, shared, rows, incoming, first_query, first_column);
        __syncthreads();
      }
      if (key_wanted) {
        put_weights(shared, slopes);
        add_weighted<kColumns>(key_sums, shared, rows, query, first_query, first_column);
      }
    }
  }
  if (key_wanted)
    store_rows<kColumns>(gradients.key.of(batch, key_head), first_key, first_column, key_sums,
                         call.pairs.scale);
  if (value_wanted)
    store_rows<kColumns>(gradients.value.of(batch, key_head), first_key, first_column, value_sums, 1);
}

}  // namespace

void CudaBackend::attention_gradient(const AttentionSettings& settings, const AttentionArrays& arrays,
                                     const AttentionGradients& gradients) {
  if (attention_gradient_on_tensor_cores(settings, arrays, gradients)) return;
  const Call call(settings, arrays);
  const std::int64_t batch = arrays.query.shape[0], rows = batch * call.heads * call.pairs.queries;
  const Scratch<float> mean_slopes = scratch<float>(rows);
  const Gradients wanted(gradients, mean_slopes.data());
  run_elements(mean_slope_kernel, rows * 32, call, Heads(arrays.output), wanted, rows);
  if (gradients.query.data || gradients.bias.data) {
    // Tiles without a pair that may be read are never visited.
    if (gradients.bias.data && (settings.causal || settings.window > 0)) fill(0, gradients.bias);
    dispatch_columns(call.query.width, [&](auto columns) {
      constexpr int kColumns = decltype(columns)::value;
      run(query_gradient_kernel<kColumns>,
          {call.query_grid(batch, slices<kColumns>(call.query.width)), dim3(kThreads)}, call, wanted);
    });
  }
  if (gradients.key.data || gradients.value.data) {
    const int width = std::max(call.key.width, call.value.width);
    const int key_heads = static_cast<int>(arrays.key.shape[1]);
    dispatch_columns(width, [&](auto columns) {
      constexpr int kColumns = decltype(columns)::value;
      const dim3 grid(static_cast<unsigned>(tiles_of(call.pairs.keys) * key_heads * batch),
                      slices<kColumns>(width));
      run(key_gradient_kernel<kColumns>, {grid, dim3(kThreads)}, call, wanted, key_heads);
    });
  }
}

}  // namespace needle
