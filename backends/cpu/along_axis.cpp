// Kernels that walk along one axis of any strides: the largest elements, and running sums.
#include <numeric>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/loops.h"
#include "backends/cpu/row_math.h"
#include "backends/ordering.h"
#include "backends/scratch.h"

namespace needle {

namespace {

/// x without its axis `axis`.
View without_axis(View x, int axis) {
  x.shape.erase(axis);
  x.strides.erase(axis);
  return x;
}

/// Calls body(offset in x, offset in y) for all elements of two views of one shape, on all threads when the
/// whole work is `elements`.
template <class Body>
void for_each_line(const View& x, const View& y, std::int64_t elements, const Body& body) {
  const std::int64_t lines = x.count();
#pragma omp parallel for schedule(static) if (elements >= kParallelElements)
  for (std::int64_t line = 0; line < lines; ++line)
    body(offset_of(line, x.shape, x.strides), offset_of(line, y.shape, y.strides));
}

/// Index of the first largest of `count` elements.
template <class T>
std::int64_t index_of_largest(const T* line, std::int64_t count, std::int64_t stride) {
  using A = Arithmetic<T>;
  constexpr std::int64_t kPiece = 512;
  std::int64_t best = 0;
  A largest = static_cast<A>(line[0]);
  for (std::int64_t start = 0; start < count; start += kPiece) {
    const std::int64_t end = std::min(count, start + kPiece);
    if constexpr (std::is_floating_point_v<T>) {  // most pieces hold nothing larger
      if (stride == 1 && !exceeds(row_max(line + start, end - start), largest)) continue;
    }
    for (std::int64_t i = start; i < end; ++i) {
      const A element = static_cast<A>(line[i * stride]);
      if (!exceeds(element, largest)) continue;
      largest = element;
      best = i;
    }
  }
  return best;
}

}  // namespace

void CpuBackend::argmax(const View& x, const View& y) {
  dispatch(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_each_line(without_axis(x, x.rank() - 1), y, x.count(), [&](std::int64_t at_x, std::int64_t at_y) {
      y.as<std::int64_t>()[at_y] = index_of_largest(x.as<T>() + at_x, x.shape.at(-1), x.strides.at(-1));
    });
  });
}

void CpuBackend::top_k(const View& x, const View& values, const View& indices) {
  if (values.count() == 0) return;
  const int last = x.rank() - 1;
  const std::int64_t count = x.shape[last], k = values.shape[last], lines = x.count() / count;
  const Scratch<std::int64_t> orders(pool_, static_cast<std::size_t>(available_threads() * count));
  dispatch(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Arithmetic<T>;
    const View x_lines = without_axis(x, last), value_lines = without_axis(values, last),
               index_lines = without_axis(indices, last);
#pragma omp parallel for schedule(static) if (x.count() >= kParallelElements)
    for (std::int64_t line = 0; line < lines; ++line) {
      const T* from = x.as<T>() + offset_of(line, x_lines.shape, x_lines.strides);
      T* to = values.as<T>() + offset_of(line, value_lines.shape, value_lines.strides);
      std::int64_t* to_index =
          indices.as<std::int64_t>() + offset_of(line, index_lines.shape, index_lines.strides);
      std::int64_t* order = orders.data() + thread_number() * count;
      std::iota(order, order + count, std::int64_t{0});
      std::partial_sort(order, order + k, order + count, [&](std::int64_t i, std::int64_t j) {
        const A a = static_cast<A>(from[i * x.strides[last]]), b = static_cast<A>(from[j * x.strides[last]]);
        return exceeds(a, b) || (!exceeds(b, a) && i < j);
      });
      for (std::int64_t i = 0; i < k; ++i) {
        to[i * values.strides[last]] = from[order[i] * x.strides[last]];
        to_index[i * indices.strides[last]] = order[i];
      }
    }
  });
}

void CpuBackend::cumulative_sum(const View& x, int axis, const View& y) {
  if (x.rank() == 0) return copy(x, y);
  dispatch(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Arithmetic<T>;
    for_each_line(without_axis(x, axis), without_axis(y, axis), x.count(),
                  [&](std::int64_t at_x, std::int64_t at_y) {
                    A total(0);
                    for (std::int64_t i = 0; i < x.shape[axis]; ++i) {
                      total = static_cast<A>(total + static_cast<A>(x.as<T>()[at_x + i * x.strides[axis]]));
                      y.as<T>()[at_y + i * y.strides[axis]] = static_cast<T>(total);
                    }
                  });
  });
}

}  // namespace needle
