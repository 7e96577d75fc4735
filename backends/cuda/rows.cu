// Picking and placing by index. A wrong index is told of at the next synchronisation; until then it picks
// zeros and adds nothing.
#include "backends/convert.h"
#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/device_code.h"

namespace needle {

namespace {

/// What lies along the axis that is indexed.
struct IndexedAxis {
  std::int64_t size, stride;
  __device__ bool holds(std::int64_t index) const { return index >= 0 && index < size; }
};

/// y = x[index] for each element of index and y; `axes` are theirs and x's without the one that is indexed.
template <class Word>
__global__ void __launch_bounds__(256)
    gather_kernel(MergedAxes<3> axes, IndexedAxis axis, const Word* x, const std::int64_t* index, Word* y) {
  for (std::int64_t i = cuda::grid_index(); i < axes.count; i += cuda::grid_stride()) {
    const auto at = cuda::offsets_of(axes, i);
    const std::int64_t from = index[at[1]];
    y[at[2]] = axis.holds(from) ? x[at[0] + from * axis.stride] : Word(0);
  }
}

/// y[index] += x along lines of `length`; a thread takes a line from its start to its end.
__global__ void __launch_bounds__(256)
    scatter_add_kernel(MergedAxes<3> lines, std::int64_t length, std::int64_t x_stride,
                       std::int64_t index_stride, IndexedAxis axis, const float* x, const std::int64_t* index,
                       float* y) {
  for (std::int64_t line = cuda::grid_index(); line < lines.count; line += cuda::grid_stride()) {
    const auto at = cuda::offsets_of(lines, line);
    for (std::int64_t i = 0; i < length; ++i) {
      const std::int64_t to = index[at[1] + i * index_stride];
      if (axis.holds(to)) y[at[2] + to * axis.stride] += x[at[0] + i * x_stride];
    }
  }
}

View without_axis(View x, int axis) {
  x.shape.erase(axis);
  x.strides.erase(axis);
  return x;
}

// Rows that are added to rows of a table are sorted first by the row they go to and then by their own
// number, so that one block finds all that go to a row, in their order.

/// What rows are sorted by: the target, then the row's own number, so that no two keys are alike.
using Key = std::uint64_t;
__device__ inline std::int64_t target_of(Key key) { return static_cast<std::int64_t>(key >> 32); }
__device__ inline std::int64_t number_of(Key key) { return static_cast<std::int64_t>(key & 0xffffffffu); }

constexpr Key kLastKey = ~Key{0};
constexpr int kSortThreads = 1024, kTile = 2 * kSortThreads;

/// Keys of rows, sorted within tiles: bitonic (Batcher 1968). What is no index goes behind all targets.
__global__ void __launch_bounds__(kSortThreads)
    sort_tiles_kernel(const std::int64_t* rows, std::int64_t stride, std::int64_t count, std::int64_t targets,
                      Key* keys, const char* op, cuda::Failure* failure) {
  NEEDLE_SHARED(Key, tile, [kTile]);
  const std::int64_t start = static_cast<std::int64_t>(blockIdx.x) * kTile;
  for (int i = static_cast<int>(threadIdx.x); i < kTile; i += kSortThreads) {
    tile[i] = kLastKey;
    if (start + i >= count) continue;
    const std::int64_t row = rows[(start + i) * stride];
    const Key target = row >= 0 && row < targets ? static_cast<Key>(row) : kLastKey >> 32;
    if (target == kLastKey >> 32)
      cuda::keep_first(failure, {cuda::Failure::Kind::index, op, start + i, row, targets, 0});
    tile[i] = target << 32 | static_cast<Key>(start + i);
  }
  __syncthreads();
  for (int run = 2; run <= kTile; run *= 2) {
    for (int apart = run / 2; apart > 0; apart /= 2) {
      const int thread = static_cast<int>(threadIdx.x);
      const int low = thread / apart * 2 * apart + thread % apart, high = low + apart;
      const Key a = tile[low], b = tile[high];
      const bool rising = (low & run) == 0;
      if ((a > b) == rising) {
        tile[low] = b;
        tile[high] = a;
      }
      __syncthreads();
    }
  }
  for (int i = static_cast<int>(threadIdx.x); i < kTile && start + i < count; i += kSortThreads)
    keys[start + i] = tile[i];
}

/// Merges neighbouring sorted runs: a key goes behind those of both runs that are smaller.
__global__ void __launch_bounds__(256)
    merge_kernel(const Key* from, std::int64_t count, std::int64_t run, Key* to) {
  for (std::int64_t i = cuda::grid_index(); i < count; i += cuda::grid_stride()) {
    const std::int64_t start = i / (2 * run) * 2 * run, middle = min(start + run, count);
    const bool in_first = i < middle;
    std::int64_t low = in_first ? middle : start, high = in_first ? min(middle + run, count) : middle;
    const std::int64_t other = low;
    const Key key = from[i];
    while (low < high) {
      const std::int64_t half = low + (high - low) / 2;
      if (from[half] < key)
        low = half + 1;
      else
        high = half;
    }
    to[in_first ? i + low - other : start + (i - middle) + (low - other)] = key;
  }
}

/// Matrices of the same width.
struct RowsAndTable {
  const float* x;
  float* table;
  std::int64_t width, x_stride, x_step, table_stride, table_step;
};

/// The block of the first key of a target adds up all its rows; a thread takes a column.
__global__ void __launch_bounds__(256)
    add_rows_kernel(const Key* keys, std::int64_t count, std::int64_t targets, RowsAndTable arrays) {
  std::int64_t place = blockIdx.x;
  const std::int64_t target = target_of(keys[place]);
  if (target >= targets || (place > 0 && target_of(keys[place - 1]) == target)) return;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (column >= arrays.width) return;
  const float* const x = arrays.x + column * arrays.x_step;
  float* const to = arrays.table + target * arrays.table_stride + column * arrays.table_step;
  float sum = *to;
  // Several are on their way at once.
  constexpr int kTogether = 8;
  for (; place + kTogether <= count && target_of(keys[place + kTogether - 1]) == target; place += kTogether) {
    float next[kTogether];
    NEEDLE_UNROLL
    for (int i = 0; i < kTogether; ++i) next[i] = x[number_of(keys[place + i]) * arrays.x_stride];
    NEEDLE_UNROLL
    for (int i = 0; i < kTogether; ++i) sum += next[i];
  }
  for (; place < count && target_of(keys[place]) == target; ++place)
    sum += x[number_of(keys[place]) * arrays.x_stride];
  *to = sum;
}

}  // namespace

void CudaBackend::gather_along(const View& x, int axis, const View& index, const View& y) {
  View lines = x;  // where each element of y is looked for
  lines.shape[axis] = index.shape[axis];
  lines.strides[axis] = 0;
  const MergedAxes<3> axes({lines, index, y});
  dispatch_size(x.dtype, [&](auto tag) {
    using Word = typename decltype(tag)::type;
    run_elements(gather_kernel<Word>, axes.count, axes, IndexedAxis{x.shape[axis], x.strides[axis]},
                 x.as<Word>(), index.as<std::int64_t>(), y.as<Word>());
  });
}

void CudaBackend::gather(const View& x, int axis, const View& index, const View& y) {
  check_indices("gather", index, x.shape[axis]);
  gather_along(x, axis, index, y);
}

void CudaBackend::gather_rows(const View& table, const View& rows, const View& y) {
  check_indices("gather_rows", rows, table.shape[0]);
  View index = rows;  // for all columns the same
  index.shape.push_back(table.shape[1]);
  index.strides.push_back(0);
  gather_along(table, 0, index, y);
}

void CudaBackend::scatter_add(const View& x, int axis, const View& index, const View& y) {
  cuda::require_float32("scatter_add", x.dtype);
  check_indices("scatter_add", index, y.shape[axis]);
  if (x.count() == 0) return;
  const MergedAxes<3> lines({without_axis(x, axis), without_axis(index, axis), without_axis(y, axis)});
  run_elements(scatter_add_kernel, lines.count, lines, x.shape[axis], x.strides[axis], index.strides[axis],
               IndexedAxis{y.shape[axis], y.strides[axis]}, x.as<float>(), index.as<std::int64_t>(),
               y.as<float>());
}

void CudaBackend::scatter_add_rows(const View& x, const View& rows, const View& table) {
  cuda::require_float32("scatter_add_rows", table.dtype);
  const std::int64_t count = x.shape[0], width = x.shape[1], targets = table.shape[0];
  if (x.count() == 0) return;
  require(std::max(count, targets) < 0x7fffffff, "scatter_add_rows: too many rows for cuda");
  const auto first = scratch<Key>(count), second = scratch<Key>(count > kTile ? count : 0);
  Key *keys = first.data(), *merged = second.data();
  run(sort_tiles_kernel, {dim3(static_cast<unsigned>((count + kTile - 1) / kTile)), dim3(kSortThreads)},
      rows.as<std::int64_t>(), rows.strides[0], count, targets, keys, "scatter_add_rows", failure_.get());
  for (std::int64_t sorted = kTile; sorted < count; sorted *= 2) {
    run_elements(merge_kernel, count, keys, count, sorted, merged);
    std::swap(keys, merged);
  }
  constexpr std::int64_t kMostThreads = 256;
  const std::int64_t threads = std::min(kMostThreads, (width + 31) / 32 * 32);
  run(add_rows_kernel,
      {dim3(static_cast<unsigned>(count), static_cast<unsigned>((width + threads - 1) / threads)),
       dim3(static_cast<unsigned>(threads))},
      keys, count, targets,
      RowsAndTable{x.as<float>(), table.as<float>(), width, x.strides[0], x.strides[1], table.strides[0],
                   table.strides[1]});
}

}  // namespace needle
