// Kernels that walk along one axis of any strides, a block for each line: the largest elements, and running
// sums.
#include <limits>

#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/device_code.h"
#include "backends/ordering.h"

namespace needle {

namespace {

constexpr std::int64_t kMostThreads = 1024;

struct Line {
  std::int64_t count, stride;
};
Line line_of(const View& x, int axis) { return {x.shape[axis], x.strides[axis]}; }

View without_axis(View x, int axis) {
  x.shape.erase(axis);
  x.strides.erase(axis);
  return x;
}

/// A block for each line, of as many threads as a line has use for.
cuda::LaunchConfig blocks_for_lines(std::int64_t lines, std::int64_t count) {
  const std::int64_t threads = std::min(kMostThreads, (count + 31) / 32 * 32);
  return {dim3(static_cast<unsigned>(lines)), dim3(static_cast<unsigned>(threads))};
}

/// In what a thread counts with elements of T: warps exchange no bools.
template <class T>
using Exchanged = std::conditional_t<std::is_same_v<T, bool>, int, T>;

/// An element of a line and its index; there is none where the index is kNone.
constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
template <class A>
struct Candidate {
  A value;
  std::int64_t index;
};

/// a before b in falling order, the lower index first among equals.
template <class A>
__device__ bool comes_before(const Candidate<A>& a, const Candidate<A>& b) {
  return exceeds(a.value, b.value) || (!exceeds(b.value, a.value) && a.index < b.index);
}

/// The first of a thread's elements thread, thread + step, ... of those that come after `last`, where there
/// is a last one.
template <class T>
__device__ __forceinline__ Candidate<Exchanged<T>> next_of_thread(const cuda::Stored& x, std::int64_t start,
                                                                  const Line& line,
                                                                  const Candidate<Exchanged<T>>& last) {
  using A = Exchanged<T>;
  Candidate<A> best{Max::identity<A>(), kNone};
  for (std::int64_t i = threadIdx.x; i < line.count; i += blockDim.x) {
    const Candidate<A> element{static_cast<A>(cuda::load<T>(x, start + i * line.stride)), i};
    const bool remains = last.index == kNone || comes_before(last, element);
    if (remains && (best.index == kNone || comes_before(element, best))) best = element;
  }
  return best;
}

/// The k largest of each line: each thread offers the first of its elements that is left, and who has the
/// first of all looks for its next one.
template <class T>
__global__ void __launch_bounds__(kMostThreads)
    top_k_kernel(MergedAxes<3> lines, Line line, cuda::Stored x, std::int64_t k, cuda::Stored values,
                 std::int64_t value_stride, std::int64_t* indices, std::int64_t index_stride) {
  using A = Exchanged<T>;
  NEEDLE_SHARED(A, values_of_warps, [32]);
  NEEDLE_SHARED(std::int64_t, indices_of_warps, [32]);
  const auto at = cuda::offsets_of(lines, blockIdx.x);
  Candidate<A> mine = next_of_thread<T>(x, at[0], line, {A(0), kNone});
  for (std::int64_t i = 0; i < k; ++i) {
    Candidate<A> first;
    first.value = cuda::block_reduce(mine.value, values_of_warps, Max{});
    first.index =
        cuda::block_reduce(exceeds(first.value, mine.value) ? kNone : mine.index, indices_of_warps, Min{});
    if (threadIdx.x == 0) {
      if (values.data) cuda::store<T>(values, at[1] + i * value_stride, static_cast<T>(first.value));
      indices[at[2] + i * index_stride] = first.index;
    }
    if (i + 1 < k && mine.index == first.index) mine = next_of_thread<T>(x, at[0], line, first);
  }
}

/// y = the running sum of x: tile by tile, on each the sum of all before it.
template <class T>
__global__ void __launch_bounds__(kMostThreads)
    cumulative_sum_kernel(MergedAxes<2> lines, Line line, cuda::Stored x, cuda::Stored y,
                          std::int64_t y_stride) {
  using A = Exchanged<T>;
  NEEDLE_SHARED(A, warp_totals, [32]);
  const auto at = cuda::offsets_of(lines, blockIdx.x);
  const unsigned lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize;
  A before_tile(0);
  for (std::int64_t start = 0; start < line.count; start += blockDim.x) {
    const std::int64_t i = start + threadIdx.x;
    A sum = i < line.count ? static_cast<A>(cuda::load<T>(x, at[0] + i * line.stride)) : A(0);
    for (unsigned distance = 1; distance < 32; distance *= 2) {
      const A other = __shfl_up_sync(cuda::kFullMask, sum, distance);
      if (lane >= distance) sum += other;
    }
    if (lane == 31) warp_totals[warp] = sum;
    __syncthreads();
    A before(0), total(0);
    for (unsigned other = 0; other < blockDim.x / warpSize; ++other) {
      if (other == warp) before = total;
      total += warp_totals[other];
    }
    if (i < line.count) cuda::store<T>(y, at[1] + i * y_stride, static_cast<T>(before_tile + before + sum));
    before_tile += total;
    __syncthreads();
  }
}

}  // namespace

void CudaBackend::argmax(const View& x, const View& y) {
  cuda::require_no_float64("argmax", x.dtype);
  // The first of the largest, without its value.
  View indices = y;
  indices.shape.push_back(1);
  indices.strides.push_back(1);
  View values = indices;
  values.data = nullptr;
  top_k(x, values, indices);
}

void CudaBackend::top_k(const View& x, const View& values, const View& indices) {
  if (indices.count() == 0) return;
  const int last = x.rank() - 1;
  const Line line = line_of(x, last);
  const MergedAxes<3> lines({without_axis(x, last), without_axis(values, last), without_axis(indices, last)});
  cuda::dispatch_arithmetic("top_k", x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    run(top_k_kernel<T>, blocks_for_lines(lines.count, line.count), lines, line, x, indices.shape[last],
        values, values.strides[last], indices.as<std::int64_t>(), indices.strides[last]);
  });
}

void CudaBackend::cumulative_sum(const View& x, int axis, const View& y) {
  if (x.rank() == 0) return copy(x, y);
  if (x.count() == 0) return;
  const Line line = line_of(x, axis);
  const MergedAxes<2> lines({without_axis(x, axis), without_axis(y, axis)});
  cuda::dispatch_arithmetic("cumulative_sum", x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    run(cumulative_sum_kernel<T>, blocks_for_lines(lines.count, line.count), lines, line, x, y,
        y.strides[axis]);
  });
}

}  // namespace needle
