// What flash attention and its gradient on tensor cores share: tiles of rows in shared memory, products of
// them in registers, and who may meet whom.
//
// A block keeps a tile of `left` rows and walks over tiles of `right` rows: queries against keys, or keys
// against queries. A warp owns 16 kRowTiles left rows; of a product it holds FragmentC[row tile][8 columns].
// Its lane 4 g + t has rows g and g + 8 of each row tile (r = 0, 1) and columns 2t and 2t + 1 of each eight
// (c = 0, 1), at x[2 r + c].
#pragma once

#include <algorithm>
#include <numbers>
#include <type_traits>
#include <vector>

#include "backends/cuda/async_copy.h"
#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/device_code.h"
#include "backends/cuda/mma.h"

namespace needle::cuda {

inline constexpr int kWarps = 4, kAttentionThreads = 32 * kWarps;

/// A row in shared memory, padded by 16 bytes, so that ldmatrix meets no bank conflicts.
template <class T, int kWidth>
struct TileRow {
  T x[kWidth + 8];
};

/// An array [batch, heads, rows, width] without its sizes; rows lie at multiples of 16 bytes.
template <class T>
struct HeadRows {
  T* data;
  std::int64_t batch_stride, head_stride, row_stride;

  HeadRows(const View& x)
      : data(x.as<T>()),
        batch_stride(x.data ? x.strides[0] : 0),
        head_stride(x.data ? x.strides[1] : 0),
        row_stride(x.data ? x.strides[2] : 0) {}
  __device__ T* row(int batch, int head, int i) const {
    return data + batch * batch_stride + head * head_stride + i * row_stride;
  }
};

/// The rows that count: those there are and, of keys, those that the mask calls real.
struct RealRows {
  int count;
  const bool* mask;  // or null
  std::int64_t batch_stride, stride;

  __device__ bool has(int batch, int i) const {
    return i < count && (mask == nullptr || mask[batch * batch_stride + i * stride]);
  }
};

/// Which of kCount neighbouring rows are real, one bit each.
template <int kCount>
struct Bits {
  unsigned words[kCount / 32];

  __device__ bool all() const {
    unsigned both = kFullMask;
    NEEDLE_UNROLL
    for (unsigned word : words) both &= word;
    return both == kFullMask;
  }
};
template <int kCount>
__device__ __forceinline__ Bits<kCount> real_bits(const RealRows& rows, int batch, int first) {
  Bits<kCount> bits;
  NEEDLE_UNROLL
  for (int w = 0; w < kCount / 32; ++w)
    bits.words[w] =
        __ballot_sync(kFullMask, rows.has(batch, first + 32 * w + static_cast<int>(threadIdx.x % 32)));
  return bits;
}

/// Row r may meet columns first + r, ..., last + r - 1: so causality, offset and window look, to queries and
/// to keys alike.
struct Band {
  int first, last;

  __device__ bool has(int row, int column) const {
    return static_cast<unsigned>(column - row - first) < static_cast<unsigned>(last - first);
  }
  /// Whether all of the columns may meet all of the rows, or any of them any.
  __device__ bool covers(int row, int rows, int column, int columns) const {
    return column >= first + row + rows - 1 && column + columns <= last + row;
  }
  __device__ bool touches(int row, int rows, int column, int columns) const {
    return column < last + row + rows - 1 && column + columns > first + row;
  }
  /// The first column that any of the rows may meet, and the end of those.
  __device__ int begin(int row) const { return max(0, first + row); }
  __device__ int end(int row, int rows, int columns) const { return min(columns, last + row + rows - 1); }
  /// The same pairs with rows and columns exchanged.
  Band transposed() const { return {1 - last, 1 - first}; }
};

/// Starts the copy of kCount rows of a head, of which the first lies at `from`; zeros for what is not real,
/// so that not even a NaN there reaches a sum.
template <int kCount, class T, int kWidth>
__device__ __forceinline__ void copy_rows(TileRow<T, kWidth>* to, const T* from, std::int64_t row_stride,
                                          const Bits<kCount>& real) {
  constexpr int kRowsAtOnce = kAttentionThreads / (kWidth / 8);
  const int thread = static_cast<int>(threadIdx.x), row = thread / (kWidth / 8),
            column = thread % (kWidth / 8) * 8;
  NEEDLE_UNROLL
  for (int first = 0; first < kCount; first += kRowsAtOnce) {
    const bool is_real = real.words[first / 32] >> (first % 32 + row) & 1u;
    copy_async_16(&to[first + row].x[column], is_real ? from + (first + row) * row_stride + column : from,
                  is_real);
  }
}

/// product = left right^T, of the warp's rows.
template <int kRowTiles, int kColumns, class T, int kWidth>
__device__ __forceinline__ void multiply_rows(FragmentC (&product)[kRowTiles][kColumns / 8],
                                              const TileRow<T, kWidth>* left,
                                              const TileRow<T, kWidth>* right) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  NEEDLE_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    NEEDLE_UNROLL
    for (int j = 0; j < kColumns / 8; ++j) product[m][j] = {};
  }
#pragma unroll 2  // more at once would not fit the registers
  for (int d = 0; d < kWidth; d += 16) {
    FragmentA a[kRowTiles];
    NEEDLE_UNROLL
    for (int m = 0; m < kRowTiles; ++m) load_matrix(a[m].x, &left[16 * m + lane % 16].x[d + lane / 16 * 8]);
    NEEDLE_UNROLL
    for (int j = 0; j < kColumns / 8; j += 2) {
      unsigned b[4];
      load_matrix(b, &right[8 * j + lane / 16 * 8 + lane % 8].x[d + lane / 8 % 2 * 8]);
      NEEDLE_UNROLL
      for (int m = 0; m < kRowTiles; ++m) {
        multiply_accumulate<T>(product[m][j], a[m], {b[0], b[1]});
        multiply_accumulate<T>(product[m][j + 1], a[m], {b[2], b[3]});
      }
    }
  }
}

/// sum += weights right, the weights rounded to T.
template <int kRowTiles, int kColumns, class T, int kWidth>
__device__ __forceinline__ void add_weighted_rows(FragmentC (&sum)[kRowTiles][kWidth / 8],
                                                  const FragmentC (&weights)[kRowTiles][kColumns],
                                                  const TileRow<T, kWidth>* right) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  NEEDLE_UNROLL
  for (int t = 0; t < kColumns; t += 2) {
    FragmentA a[kRowTiles];
    NEEDLE_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      const FragmentC &low = weights[m][t], &high = weights[m][t + 1];
      a[m] = {pack<T>(low.x[0], low.x[1]), pack<T>(low.x[2], low.x[3]), pack<T>(high.x[0], high.x[1]),
              pack<T>(high.x[2], high.x[3])};
    }
    NEEDLE_UNROLL
    for (int j = 0; j < kWidth / 8; j += 2) {
      unsigned b[4];
      load_matrix_transposed(b, &right[8 * t + lane % 16].x[8 * j + lane / 16 * 8]);
      NEEDLE_UNROLL
      for (int m = 0; m < kRowTiles; ++m) {
        multiply_accumulate<T>(sum[m][j], a[m], {b[0], b[1]});
        multiply_accumulate<T>(sum[m][j + 1], a[m], {b[2], b[3]});
      }
    }
  }
}

/// Scores of the warp's rows, from `row` on, with the columns from `column` on: scaled, to base 2, in which
/// the hardware computes powers, and -infinity for pairs that may not meet.
template <int kRowTiles, int kColumns>
__device__ __forceinline__ void scale_and_mask(FragmentC (&scores)[kRowTiles][kColumns / 8], float scale,
                                               const Band& band, const Bits<kColumns>& real, int row,
                                               int column) {
  const int lane = static_cast<int>(threadIdx.x % 32), pair = lane % 4 * 2;
  const float scale_in_base_2 = scale * std::numbers::log2e_v<float>;
  const bool whole = real.all() && band.covers(row, 16 * kRowTiles, column, kColumns);
  NEEDLE_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    NEEDLE_UNROLL
    for (int j = 0; j < kColumns / 8; ++j) {
      NEEDLE_UNROLL
      for (int i = 0; i < 4; ++i) scores[m][j].x[i] *= scale_in_base_2;
    }
  }
  if (whole) return;
  NEEDLE_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    NEEDLE_UNROLL
    for (int j = 0; j < kColumns / 8; ++j) {
      NEEDLE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int of_row = 16 * m + lane / 4 + i / 2 * 8, of_column = 8 * j + pair + i % 2;
        const bool is_real = real.words[j / 4] >> (8 * (j % 4) + pair + i % 2) & 1u;
        if (!is_real || !band.has(row + of_row, column + of_column)) scores[m][j].x[i] = -INFINITY;
      }
    }
  }
}

/// Rounds the warp's sums to rows of a head, of which the first lies at `to`: to the first `count`, zeros to
/// those that are not real. Goes by way of the warp's own rows of shared memory, for stores of 16 bytes; a
/// barrier comes before, so that no lane reads these rows any more.
template <int kRowTiles, class T, int kWidth>
__device__ __forceinline__ void store_rows(T* to, std::int64_t row_stride,
                                           const FragmentC (&sum)[kRowTiles][kWidth / 8],
                                           TileRow<T, kWidth>* by_way_of, const RealRows& rows, int batch,
                                           int first) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  NEEDLE_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    NEEDLE_UNROLL
    for (int j = 0; j < kWidth / 8; ++j) {
      NEEDLE_UNROLL
      for (int r = 0; r < 2; ++r) {
        T* const place = &by_way_of[16 * m + lane / 4 + 8 * r].x[8 * j + lane % 4 * 2];
        *reinterpret_cast<unsigned*>(place) = pack<T>(sum[m][j].x[2 * r], sum[m][j].x[2 * r + 1]);
      }
    }
  }
  __syncwarp();
  for (int i = lane; i < 16 * kRowTiles * kWidth / 8; i += 32) {
    const int row = i / (kWidth / 8), column = i % (kWidth / 8) * 8;
    if (first + row >= rows.count) continue;
    const uint4 eight = *reinterpret_cast<const uint4*>(&by_way_of[row].x[column]);
    *reinterpret_cast<uint4*>(to + row * row_stride + column) =
        rows.has(batch, first + row) ? eight : make_uint4(0, 0, 0, 0);
  }
}

/// Sizes and masks of a call, for kernels.
struct AttentionSizes {
  int heads, key_heads, group;  ///< each key head serves `group` heads
  int queries, keys;
  float scale;
  Band band;  ///< queries x keys
  RealRows real_queries, real_keys;
};

inline AttentionSizes sizes_of(const AttentionSettings& settings, const AttentionArrays& arrays) {
  const std::int64_t queries = arrays.query.shape[2], keys = arrays.key.shape[2];
  const int heads = static_cast<int>(arrays.query.shape[1]),
            key_heads = static_cast<int>(arrays.key.shape[1]);
  const auto diagonal = [&](std::int64_t key_of_query_0) {
    return static_cast<int>(std::clamp(key_of_query_0, -queries, keys));
  };
  const Band band{diagonal(settings.window > 0 ? settings.offset + 1 - settings.window : -queries),
                  diagonal(settings.causal ? settings.offset + 1 : keys)};
  RealRows real_queries{static_cast<int>(queries), nullptr, 0, 0},
      real_keys{static_cast<int>(keys), nullptr, 0, 0};
  if (const View& mask = settings.key_mask; mask.data != nullptr)
    real_keys = {static_cast<int>(keys), mask.as<bool>(), mask.strides[0], mask.strides[1]};
  return {heads,
          key_heads,
          heads / std::max(key_heads, 1),
          static_cast<int>(queries),
          static_cast<int>(keys),
          static_cast<float>(settings.scale),
          band,
          real_queries,
          real_keys};
}

/// Whether rows of a view [batch, heads, rows, width] lie at multiples of 16 bytes.
inline bool has_aligned_rows(const View& x) {
  bool aligned = reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0;
  for (int axis = 0; axis < 3; ++axis) aligned = aligned && (x.shape[axis] < 2 || x.strides[axis] % 8 == 0);
  return aligned;
}

/// Calls function(TypeTag of the stored type, the width as a constant) and returns true if tensor cores of
/// this device have a kernel for the call; `others` are arrays beside its own, some of them absent.
template <class Function>
bool dispatch_tensor_cores(int device, const AttentionSettings& settings, const AttentionArrays& arrays,
                           std::vector<View> others, const Function& function) {
  const DType dtype = arrays.query.dtype;
  const std::int64_t width = arrays.query.shape[3];
  constexpr std::int64_t kMostRows = std::int64_t{1} << 29, kMostBlocks = 65535;  // of a grid's y and z
  if (!is_half(dtype) || arrays.log_sum.dtype != DType::f32 || arrays.value.shape[3] != width) return false;
  if (settings.allowed.data || settings.bias.data || settings.soft_cap > 0) return false;
  if (arrays.query.shape[0] > kMostBlocks || arrays.query.shape[1] > kMostBlocks ||
      arrays.query.shape[2] > kMostRows || arrays.key.shape[2] > kMostRows)
    return false;
  others.insert(others.end(), {arrays.query, arrays.key, arrays.value, arrays.output});
  for (const View& x : others) {
    if (x.data && (x.dtype != dtype || !has_aligned_rows(x))) return false;
  }
  int generation = 0;
  NEEDLE_CUDA_CHECK(cudaDeviceGetAttribute(&generation, cudaDevAttrComputeCapabilityMajor, device));
  if (generation < 8) return false;
  const auto of_width = [&](auto tag) {
    if (width == 64)
      function(tag, std::integral_constant<int, 64>());
    else if (width == 128)
      function(tag, std::integral_constant<int, 128>());
    return width == 64 || width == 128;
  };
  return dtype == DType::bf16 ? of_width(TypeTag<BFloat16>()) : of_width(TypeTag<Float16>());
}

}  // namespace needle::cuda
