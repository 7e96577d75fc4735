// Sums and extremes over axes. They run over fixed pieces that are combined by halves, so rounding errors
// grow with the logarithm of the count, and the number of threads changes nothing.
#include <cmath>
#include <numeric>
#include <vector>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/loops.h"
#include "backends/scratch.h"

namespace needle {

namespace {

struct Axis {
  std::int64_t size, stride, y_stride;
};

/// The axes of x that stay and those that are reduced, neighbours in memory last, merged where possible.
struct Split {
  std::vector<Axis> kept, reduced;

  Split(const View& x, const View& y) {
    for (int axis = 0; axis < x.rank(); ++axis) {
      if (x.shape[axis] == 1) continue;
      if (y.shape[axis] == 1)
        reduced.push_back({x.shape[axis], x.strides[axis], 0});
      else
        kept.push_back({x.shape[axis], x.strides[axis], y.strides[axis]});
    }
    order_and_merge(kept);
    order_and_merge(reduced);
  }

 private:
  static void order_and_merge(std::vector<Axis>& axes) {
    std::stable_sort(axes.begin(), axes.end(),
                     [](const Axis& a, const Axis& b) { return std::abs(a.stride) > std::abs(b.stride); });
    std::vector<Axis> merged;
    for (const Axis& axis : axes) {
      if (!merged.empty() && merged.back().stride == axis.stride * axis.size &&
          merged.back().y_stride == axis.y_stride * axis.size)
        merged.back() = {merged.back().size * axis.size, axis.stride, axis.y_stride};
      else
        merged.push_back(axis);
    }
    if (merged.empty()) merged.push_back({1, 0, 0});
    axes = std::move(merged);
  }
};

constexpr std::int64_t kColumns = 256;                   // most results that are computed side by side
constexpr std::int64_t kLanes = 16;                      // partial results of a single run: a vector register
constexpr std::int64_t kLeafRun = 1024, kLeafRows = 64;  // what is combined one after the other

/// totals[c] = op(totals[c], more[c])
template <class Op, class A, class T>
void combine(Op op, A* totals, const T* more, std::int64_t columns) {
#pragma omp simd
  for (std::int64_t c = 0; c < columns; ++c) totals[c] = op(totals[c], static_cast<A>(more[c]));
}

template <class A, class T, class Op>
A reduce_run(Op op, const T* x, std::int64_t count, std::int64_t stride) {
  if (count < kLanes) {
    A total = Op::template identity<A>();
    for (std::int64_t i = 0; i < count; ++i) total = op(total, static_cast<A>(x[i * stride]));
    return total;
  }
  A lanes[kLanes];
  std::fill_n(lanes, kLanes, Op::template identity<A>());
  std::int64_t i = 0;
  if (stride == 1) {
    for (; i + kLanes <= count; i += kLanes) combine(op, lanes, x + i, kLanes);
  }
  for (; i < count; ++i) lanes[i % kLanes] = op(lanes[i % kLanes], static_cast<A>(x[i * stride]));
  for (std::int64_t width = kLanes / 2; width > 0; width /= 2) combine(op, lanes, lanes + width, width);
  return lanes[0];
}

/// totals = the reduction over indices [first, last) of axes[level] and all of the axes behind it, for
/// `columns` results whose elements are neighbours.
template <class A, class T, class Op>
void reduce_box(Op op, const std::vector<Axis>& axes, std::size_t level, std::int64_t first,
                std::int64_t last, const T* x, std::int64_t columns, A* totals) {
  const std::int64_t count = last - first, stride = axes[level].stride;
  const bool innermost = level + 1 == axes.size();
  const std::int64_t leaf = !innermost ? 1 : columns == 1 ? kLeafRun : kLeafRows;
  if (count > leaf) {
    const std::int64_t middle = first + (count / 2 + leaf - 1) / leaf * leaf;
    A second[kColumns];
    reduce_box(op, axes, level, first, middle, x, columns, totals);
    reduce_box(op, axes, level, middle, last, x, columns, second);
    combine(op, totals, second, columns);
  } else if (!innermost) {
    reduce_box(op, axes, level + 1, 0, axes[level + 1].size, x + first * stride, columns, totals);
  } else if (columns == 1) {
    totals[0] = reduce_run<A>(op, x + first * stride, count, stride);
  } else {
    std::fill_n(totals, columns, Op::template identity<A>());
    for (std::int64_t i = first; i < last; ++i) combine(op, totals, x + i * stride, columns);
  }
}

template <class T, class Op>
void reduce_typed(Op op, const View& x, const View& y, MemoryPool& pool) {
  using A = Arithmetic<T>;
  Split split(x, y);
  // Results whose elements are neighbours are computed side by side, in blocks.
  Axis side{1, 0, 0};
  if (split.kept.back().stride == 1 && split.reduced.back().stride != 1) {
    side = split.kept.back();
    split.kept.pop_back();
  }
  const std::int64_t blocks = (side.size + kColumns - 1) / kColumns;
  const std::int64_t tasks = std::accumulate(split.kept.begin(), split.kept.end(), blocks,
                                             [](std::int64_t n, const Axis& axis) { return n * axis.size; });
  // Where there are few results, the outermost reduced axis is cut as well.
  constexpr std::int64_t kMostUnits = 64;
  const std::int64_t units = std::min(kMostUnits, x.count() / kParallelElements);
  const std::int64_t pieces = std::clamp<std::int64_t>(units / tasks, 1, split.reduced[0].size);
  const Scratch<A> partial(pool, pieces > 1 ? static_cast<std::size_t>(tasks * pieces * kColumns) : 0);

  struct Place {
    std::int64_t x, y, columns;
  };
  const auto place_of = [&](std::int64_t task) {
    const std::int64_t start = task % blocks * kColumns;
    Place place{start * side.stride, start * side.y_stride, std::min(kColumns, side.size - start)};
    std::int64_t rest = task / blocks;
    for (std::size_t axis = split.kept.size(); axis-- > 0;) {
      const std::int64_t index = axis == 0 ? rest : rest % split.kept[axis].size;
      rest /= split.kept[axis].size;
      place.x += index * split.kept[axis].stride;
      place.y += index * split.kept[axis].y_stride;
    }
    return place;
  };
  const auto store = [&](const Place& place, const A* totals) {
    T* to = y.as<T>() + place.y;
    for (std::int64_t c = 0; c < place.columns; ++c) to[c * side.y_stride] = static_cast<T>(totals[c]);
  };
#pragma omp parallel for schedule(static) if (x.count() >= kParallelElements)
  for (std::int64_t unit = 0; unit < tasks * pieces; ++unit) {
    const Place place = place_of(unit / pieces);
    const auto [first, last] = part_of(split.reduced[0].size, unit % pieces, pieces, 1);
    A local[kColumns];
    A* totals = pieces > 1 ? partial.data() + unit * kColumns : local;
    reduce_box(op, split.reduced, 0, first, last, x.as<T>() + place.x, place.columns, totals);
    if (pieces == 1) store(place, totals);
  }
  if (pieces == 1) return;
  for (std::int64_t task = 0; task < tasks; ++task) {
    const Place place = place_of(task);
    A* totals = partial.data() + task * pieces * kColumns;
    for (std::int64_t piece = 1; piece < pieces; ++piece)
      combine(op, totals, totals + piece * kColumns, place.columns);
    store(place, totals);
  }
}

}  // namespace

void CpuBackend::reduce(const ReduceOp& op, const View& x, const View& y) {
  if (y.count() == 0) return;
  std::visit(
      [&](auto f) {
        using F = decltype(f);
        if (x.count() == 0) {
          require(std::is_same_v<F, Sum>, F::kName,
                  ": there is no such value over no elements, the shape is ", x.shape);
          return fill(0, y);
        }
        dispatch(x.dtype, [&](auto tag) {
          using T = typename decltype(tag)::type;
          if constexpr (std::is_same_v<T, bool>)
            fail(F::kName, ": not defined for bool; cast it first");
          else
            reduce_typed<T>(f, x, y, pool_);
        });
      },
      op);
}

}  // namespace needle
