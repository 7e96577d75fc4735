// Reductions. Sums run over fixed pieces that are added in a fixed order, whatever the number of threads.
#include <cmath>
#include <numeric>
#include <vector>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/loops.h"

namespace needle {

namespace {

constexpr std::int64_t kPiece = 1024;

/// Reduces `count` elements by halves, so that rounding errors grow with the logarithm of the count.
template <class A, class T, class Op>
A reduce_run(Op op, const T* x, std::int64_t count, std::int64_t stride) {
  if (count > kPiece) {
    const std::int64_t half = (count / 2 + kPiece - 1) / kPiece * kPiece;
    return op(reduce_run<A>(op, x, half, stride), reduce_run<A>(op, x + half * stride, count - half, stride));
  }
  // Sixteen sums side by side: one vector register.
  A lanes[16];
  std::fill_n(lanes, 16, Op::template identity<A>());
  std::int64_t i = 0;
  if (stride == 1) {
    for (; i + 16 <= count; i += 16) {
#pragma omp simd
      for (int lane = 0; lane < 16; ++lane) lanes[lane] = op(lanes[lane], static_cast<A>(x[i + lane]));
    }
  }
  for (; i < count; ++i) lanes[0] = op(lanes[0], static_cast<A>(x[i * stride]));
  for (int width = 8; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] = op(lanes[lane], lanes[lane + width]);
  }
  return lanes[0];
}

/// Reduces the rows of x [rows, columns] (unit stride along columns) into totals [columns], by pieces of
/// rows.
template <class A, class T, class Op>
void reduce_rows(Op op, const T* x, std::int64_t rows, std::int64_t row_stride, std::int64_t columns,
                 A* totals) {
  if (rows > 64) {
    const std::int64_t half = (rows / 2 + 63) / 64 * 64;
    std::vector<A> second(static_cast<std::size_t>(columns));
    reduce_rows(op, x, half, row_stride, columns, totals);
    reduce_rows(op, x + half * row_stride, rows - half, row_stride, columns, second.data());
    for (std::int64_t c = 0; c < columns; ++c) totals[c] = op(totals[c], second[static_cast<std::size_t>(c)]);
    return;
  }
  std::fill_n(totals, columns, Op::template identity<A>());
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* row = x + r * row_stride;
#pragma omp simd
    for (std::int64_t c = 0; c < columns; ++c) totals[c] = op(totals[c], static_cast<A>(row[c]));
  }
}

/// The axes of x split into those that stay and those that are reduced, each merged where possible.
struct Split {
  std::vector<std::int64_t> kept_sizes, kept_strides, reduced_sizes, reduced_strides;

  Split(const View& x, const View& y) {
    for (int axis = 0; axis < x.rank(); ++axis) {
      if (x.shape[axis] == 1) continue;
      const bool kept = y.shape[axis] != 1;
      append(kept ? kept_sizes : reduced_sizes, kept ? kept_strides : reduced_strides, x.shape[axis],
             x.strides[axis]);
    }
  }
  static std::int64_t offset(std::int64_t index, const std::vector<std::int64_t>& sizes,
                             const std::vector<std::int64_t>& strides) {
    std::int64_t result = 0;
    for (std::size_t axis = sizes.size(); axis-- > 0;) {
      result += index % sizes[axis] * strides[axis];
      index /= sizes[axis];
    }
    return result;
  }

 private:
  static void append(std::vector<std::int64_t>& sizes, std::vector<std::int64_t>& strides, std::int64_t size,
                     std::int64_t stride) {
    if (!sizes.empty() && strides.back() == stride * size) {
      sizes.back() *= size;
      strides.back() = stride;
    } else {
      sizes.push_back(size);
      strides.push_back(stride);
    }
  }
};

template <class T, class Op>
void reduce_typed(Op op, const View& x, const View& y) {
  using A = Arithmetic<T>;
  const Split split(x, y);
  T* to = y.as<T>();
  const std::int64_t results = y.count();
  if (split.reduced_sizes.size() <= 1) {
    const std::int64_t count = split.reduced_sizes.empty() ? 1 : split.reduced_sizes[0];
    const std::int64_t stride = split.reduced_sizes.empty() ? 1 : split.reduced_strides[0];
    if (split.kept_sizes.size() == 1 && split.kept_strides[0] == 1 && results > 1) {
      // Whole rows are added up; threads take pieces of columns.
      constexpr std::int64_t kColumns = 64;
#pragma omp parallel for schedule(static) if (x.count() >= kParallelElements)
      for (std::int64_t start = 0; start < results; start += kColumns) {
        A totals[kColumns];
        const std::int64_t columns = std::min(kColumns, results - start);
        reduce_rows(op, x.as<T>() + start, count, stride, columns, totals);
        for (std::int64_t c = 0; c < columns; ++c) to[start + c] = static_cast<T>(totals[c]);
      }
      return;
    }
    if (results == 1) {
      // One long run: fixed pieces in parallel, then their results in order.
      constexpr std::int64_t kLong = 1 << 16;
      const std::int64_t pieces = (count + kLong - 1) / kLong;
      std::vector<A> partial(static_cast<std::size_t>(pieces));
#pragma omp parallel for schedule(static) if (pieces > 1)
      for (std::int64_t p = 0; p < pieces; ++p) {
        partial[static_cast<std::size_t>(p)] =
            reduce_run<A>(op, x.as<T>() + p * kLong * stride, std::min(kLong, count - p * kLong), stride);
      }
      to[0] = static_cast<T>(reduce_run<A>(op, partial.data(), pieces, 1));
      return;
    }
#pragma omp parallel for schedule(static) if (x.count() >= kParallelElements)
    for (std::int64_t i = 0; i < results; ++i) {
      const T* from = x.as<T>() + Split::offset(i, split.kept_sizes, split.kept_strides);
      to[i] = static_cast<T>(reduce_run<A>(op, from, count, stride));
    }
    return;
  }
  // Several separate runs a result: the innermost is reduced, then the results of all runs.
  std::vector<std::int64_t> outer_sizes = split.reduced_sizes, outer_strides = split.reduced_strides;
  const std::int64_t inner = outer_sizes.back(), inner_stride = outer_strides.back();
  outer_sizes.pop_back();
  outer_strides.pop_back();
  const std::int64_t runs =
      std::accumulate(outer_sizes.begin(), outer_sizes.end(), std::int64_t{1}, std::multiplies<>());
#pragma omp parallel for schedule(static) if (x.count() >= kParallelElements)
  for (std::int64_t i = 0; i < results; ++i) {
    const T* from = x.as<T>() + Split::offset(i, split.kept_sizes, split.kept_strides);
    std::vector<A> partial(static_cast<std::size_t>(runs));
    for (std::int64_t r = 0; r < runs; ++r) {
      partial[static_cast<std::size_t>(r)] =
          reduce_run<A>(op, from + Split::offset(r, outer_sizes, outer_strides), inner, inner_stride);
    }
    to[i] = static_cast<T>(reduce_run<A>(op, partial.data(), runs, 1));
  }
}

/// Calls body(row of x, row of y) for all rows along the last axes; the other axes of both agree.
template <class T, class Y, class Body>
void for_each_row(const View& x, const View& y, const Body& body) {
  View x_rows = x, y_rows = y;
  const std::int64_t rows = rows_of(x);
  for (View* view : {&x_rows, &y_rows}) {
    if (view->rank() == x.rank() && x.rank() > 0) {
      view->shape.erase(view->rank() - 1);
      view->strides.erase(view->strides.rank() - 1);
    }
  }
  const auto offset = [](const View& view, std::int64_t index) {
    std::int64_t result = 0;
    for (int axis = view.rank() - 1; axis >= 0; --axis) {
      result += index % view.shape[axis] * view.strides[axis];
      index /= view.shape[axis];
    }
    return result;
  };
#pragma omp parallel for schedule(static) if (x.count() >= kParallelElements)
  for (std::int64_t row = 0; row < rows; ++row)
    body(x.as<T>() + offset(x_rows, row), y.as<Y>() + offset(y_rows, row), row);
}

/// a before b in falling order, NaN first.
template <class A>
bool exceeds(A a, A b) {
  return a > b || (a != a && b == b);
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
            reduce_typed<T>(f, x, y);
        });
      },
      op);
}

void CpuBackend::argmax(const View& x, const View& y) {
  dispatch(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Arithmetic<T>;
    const std::int64_t count = x.shape.at(-1), stride = x.strides.at(-1);
    for_each_row<T, std::int64_t>(x, y, [&](const T* row, std::int64_t* to, std::int64_t) {
      std::int64_t best = 0;
      for (std::int64_t i = 1; i < count; ++i) {
        if (exceeds(static_cast<A>(row[i * stride]), static_cast<A>(row[best * stride]))) best = i;
      }
      *to = best;
    });
  });
}

void CpuBackend::top_k(const View& x, const View& values, const View& indices) {
  dispatch(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Arithmetic<T>;
    const std::int64_t count = x.shape.at(-1), stride = x.strides.at(-1), k = values.shape.at(-1);
    for_each_row<T, T>(x, values, [&](const T* row, T* to, std::int64_t number) {
      std::vector<std::int64_t> order(static_cast<std::size_t>(count));
      std::iota(order.begin(), order.end(), std::int64_t{0});
      std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](std::int64_t i, std::int64_t j) {
        const A a = static_cast<A>(row[i * stride]), b = static_cast<A>(row[j * stride]);
        return exceeds(a, b) || (!exceeds(b, a) && i < j);
      });
      for (std::int64_t i = 0; i < k; ++i) {
        to[i] = row[order[static_cast<std::size_t>(i)] * stride];
        indices.as<std::int64_t>()[number * k + i] = order[static_cast<std::size_t>(i)];
      }
    });
  });
}

void CpuBackend::cumulative_sum(const View& x, int axis, const View& y) {
  // With the axis last, every row is summed by itself.
  View from = x, to = y;
  for (View* view : {&from, &to}) {
    if (view->rank() == 0) {
      view->shape.push_back(1);
      view->strides.push_back(1);
    }
    std::swap(view->shape[axis], view->shape[view->rank() - 1]);
    std::swap(view->strides[axis], view->strides[view->rank() - 1]);
  }
  if (x.count() == 0) return;
  dispatch(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Arithmetic<T>;
    const std::int64_t count = from.shape.at(-1), x_stride = from.strides.at(-1),
                       y_stride = to.strides.at(-1);
    for_each_row<T, T>(from, to, [&](const T* row, T* sums, std::int64_t) {
      A total(0);
      for (std::int64_t i = 0; i < count; ++i) {
        total = static_cast<A>(total + static_cast<A>(row[i * x_stride]));
        sums[i * y_stride] = static_cast<T>(total);
      }
    });
  });
}

double CpuBackend::sum_of_squares(std::span<const View> arrays) {
  constexpr std::int64_t kLong = 1 << 14;
  std::vector<double> partial;
  for (const View& x : arrays) {
    dispatch_computing("sum_of_squares", x.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const std::int64_t count = x.count(), pieces = (count + kLong - 1) / kLong;
      const std::size_t first = partial.size();
      partial.resize(first + static_cast<std::size_t>(pieces));
#pragma omp parallel for schedule(static) if (pieces > 1)
      for (std::int64_t p = 0; p < pieces; ++p) {
        const T* from = x.as<T>() + p * kLong;
        const std::int64_t here = std::min(kLong, count - p * kLong);
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (std::int64_t i = 0; i < here; ++i)
          sum += static_cast<double>(from[i]) * static_cast<double>(from[i]);
        partial[first + static_cast<std::size_t>(p)] = sum;
      }
    });
  }
  return std::accumulate(partial.begin(), partial.end(), 0.0);
}

}  // namespace needle
