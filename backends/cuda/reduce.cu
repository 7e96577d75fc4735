// Sums and extremes over axes. What is reduced is cut into fixed pieces, which are combined in order by a
// second pass; sums of floats are kept in double, so that length costs no digits.
#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/device_code.h"

namespace needle {

namespace {

/// The type in which elements of T are combined.
template <class T>
using Total = std::conditional_t<std::is_floating_point_v<T>, double, T>;

/// Which elements of x make up which result, and into how many pieces they are cut.
struct Reduction {
  MergedAxes<2> kept;     ///< of x and y
  MergedAxes<1> reduced;  ///< of x
  std::int64_t pieces;
  __device__ std::int64_t first(std::int64_t piece) const { return reduced.count * piece / pieces; }
};

/// Combines elements first, first + step, ... before last of a result that begins at `at`.
template <class Op, class T>
__device__ Total<T> combine(Op op, const cuda::Stored& x, const MergedAxes<1>& axes, std::int64_t at,
                            std::int64_t first, std::int64_t last, int step) {
  Total<T> total = Op::template identity<Total<T>>();
  for (std::int64_t i = first; i < last; i += step)
    total = op(total, static_cast<Total<T>>(cuda::load<T>(x, at + cuda::offsets_of(axes, i)[0])));
  return total;
}

/// Where a piece's total goes: y itself when there is one piece, else a row of `partial`.
template <class T>
__device__ void keep(const Reduction& r, const cuda::Stored& y, Total<T>* partial, std::int64_t task,
                     std::int64_t at, Total<T> total) {
  if (r.pieces > 1)
    partial[task] = total;
  else
    cuda::store<T>(y, at, static_cast<T>(total));
}

constexpr int kThreads = 128, kWarps = kThreads / 32;

/// A warp takes a piece: for results whose elements are neighbours.
template <class Op, class T>
__global__ void __launch_bounds__(kThreads)
    reduce_by_warps_kernel(Op op, Reduction r, cuda::Stored x, cuda::Stored y, Total<T>* partial) {
  const std::int64_t task = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (task >= r.kept.count * r.pieces) return;
  const auto at = cuda::offsets_of(r.kept, task / r.pieces);
  const std::int64_t piece = task % r.pieces;
  const Total<T> total = cuda::warp_reduce(
      combine<Op, T>(op, x, r.reduced, at[0], r.first(piece) + threadIdx.x % 32, r.first(piece + 1), 32), op);
  if (threadIdx.x % 32 == 0) keep<T>(r, y, partial, task, at[1], total);
}

/// A thread takes a piece: for neighbouring results, which neighbouring threads compute.
template <class Op, class T>
__global__ void __launch_bounds__(kThreads)
    reduce_by_threads_kernel(Op op, Reduction r, cuda::Stored x, cuda::Stored y, Total<T>* partial) {
  const std::int64_t task = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (task >= r.kept.count * r.pieces) return;
  const std::int64_t result = task % r.kept.count, piece = task / r.kept.count;
  const auto at = cuda::offsets_of(r.kept, result);
  keep<T>(r, y, partial, result * r.pieces + piece, at[1],
          combine<Op, T>(op, x, r.reduced, at[0], r.first(piece), r.first(piece + 1), 1));
}

/// y of each result from its pieces' totals, a warp each.
template <class Op, class T>
__global__ void __launch_bounds__(kThreads)
    reduce_pieces_kernel(Op op, Reduction r, const Total<T>* partial, cuda::Stored y) {
  const std::int64_t result = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (result >= r.kept.count) return;
  Total<T> total = Op::template identity<Total<T>>();
  for (std::int64_t i = threadIdx.x % 32; i < r.pieces; i += 32)
    total = op(total, partial[result * r.pieces + i]);
  total = cuda::warp_reduce(total, op);
  if (threadIdx.x % 32 == 0) cuda::store<T>(y, cuda::offsets_of(r.kept, result)[1], static_cast<T>(total));
}

/// x without the axes that are of size 1 in `y`, or without all others.
View axes_of(const View& x, const View& y, bool kept) {
  View result = x;
  for (int axis = x.rank() - 1; axis >= 0; --axis) {
    if ((y.shape[axis] == 1 && x.shape[axis] != 1) == !kept) continue;
    result.shape.erase(axis);
    result.strides.erase(axis);
  }
  return result;
}

dim3 blocks_of(std::int64_t tasks, std::int64_t a_block) {
  return dim3(static_cast<unsigned>((tasks + a_block - 1) / a_block));
}

}  // namespace

template <class Op, class T>
void CudaBackend::reduce_typed(Op op, const View& x, const View& y) {
  View results = y;  // the same axes as those that are kept of x
  for (int axis = x.rank() - 1; axis >= 0; --axis) {
    if (x.shape[axis] == 1 || y.shape[axis] != 1) continue;
    results.shape.erase(axis);
    results.strides.erase(axis);
  }
  Reduction r{MergedAxes<2>({axes_of(x, y, true), results}), MergedAxes<1>({axes_of(x, y, false)}), 1};
  const bool by_warps = r.reduced.strides[0][0] == 1;
  // As many tasks as fill a large device, unless pieces became too short for it.
  constexpr std::int64_t kTasks = 1 << 15, kShortest = 64;
  const std::int64_t wanted = (by_warps ? kTasks / 32 : kTasks) / r.kept.count;
  r.pieces = std::max<std::int64_t>(1, std::min(wanted, r.reduced.count / kShortest));
  const auto partial = scratch<Total<T>>(r.pieces > 1 ? r.kept.count * r.pieces : 0);
  const std::int64_t tasks = r.kept.count * r.pieces;
  if (by_warps)
    run(reduce_by_warps_kernel<Op, T>, {blocks_of(tasks, kWarps), dim3(kThreads)}, op, r, x, y,
        partial.data());
  else
    run(reduce_by_threads_kernel<Op, T>, {blocks_of(tasks, kThreads), dim3(kThreads)}, op, r, x, y,
        partial.data());
  if (r.pieces > 1)
    run(reduce_pieces_kernel<Op, T>, {blocks_of(r.kept.count, kWarps), dim3(kThreads)}, op, r, partial.data(),
        y);
}

void CudaBackend::reduce(const ReduceOp& op, const View& x, const View& y) {
  if (y.count() == 0) return;
  std::visit(
      [&](auto f) {
        using Op = decltype(f);
        if (x.count() == 0) {
          require(std::is_same_v<Op, Sum>, Op::kName,
                  ": there is no such value over no elements, the shape is ", x.shape);
          return fill(0, y);
        }
        cuda::dispatch_arithmetic(Op::kName, x.dtype, [&](auto tag) {
          using T = typename decltype(tag)::type;
          if constexpr (std::is_same_v<T, bool>)
            fail(Op::kName, ": not defined for bool; cast it first");
          else
            reduce_typed<Op, T>(f, x, y);
        });
      },
      op);
}

}  // namespace needle
