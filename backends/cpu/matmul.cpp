// Matrix products of any strides and batches, split over the threads by us: each computes parts of its own.
#include <algorithm>
#include <deque>
#include <limits>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/epilogue.h"
#include "backends/cpu/gemm.h"
#include "backends/cpu/loops.h"
#include "backends/cpu/parallel.h"
#include "backends/cpu/staging.h"
#include "backends/scratch.h"

namespace needle {

namespace {

/// Whether a product is so large that a second thread gains more than it costs.
bool worth_sharing(std::int64_t n, std::int64_t m, std::int64_t k) {
  return static_cast<double>(n) * static_cast<double>(m) * static_cast<double>(k) >= 64 * 64 * 64;
}

/// A product over a long inner axis, such as a weight's gradient: each thread sums over its part of that
/// axis, and the sums are added in order.
template <class T>
void product_over_parts(MemoryPool& pool, const Matrix& a, const Matrix& b, T* y, std::int64_t y_stride,
                        std::int64_t n, std::int64_t m, std::int64_t k, bool accumulate, std::int64_t parts) {
  const Scratch<T> partial(pool, static_cast<std::size_t>((parts - 1) * n * m));
#pragma omp parallel num_threads(static_cast <int>(parts))
  {
#pragma omp for schedule(static)
    for (std::int64_t part = 0; part < parts; ++part) {
      const auto [start, end] = part_of(k, part, parts, 16);
      Matrix rows = a, columns = b;
      rows.data = static_cast<const T*>(a.data) + start * a.column_stride;
      columns.data = static_cast<const T*>(b.data) + start * b.row_stride;
      if (part == 0)
        gemm(rows, columns, y, y_stride, n, m, end - start, accumulate);
      else
        gemm(rows, columns, partial.data() + (part - 1) * n * m, m, n, m, end - start, false);
    }
#pragma omp for schedule(static)
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t part = 1; part < parts; ++part) {
        const T* more = partial.data() + ((part - 1) * n + i) * m;
#pragma omp simd
        for (std::int64_t j = 0; j < m; ++j) y[i * y_stride + j] += more[j];
      }
    }
  }
}

/// One product, its rows or columns shared out to the threads in equal blocks; each calls finish(first row,
/// last row, first column, last column) for its block.
template <class T, class Finish>
void shared_product(MemoryPool& pool, const Matrix& a, const Matrix& b, T* y, std::int64_t y_stride,
                    std::int64_t n, std::int64_t m, std::int64_t k, bool accumulate, const Finish& finish) {
  constexpr std::int64_t kGranule = 16;  // rows or columns that a kernel takes at once
  const bool by_rows = !prefers_columns(a, n, m, k, std::is_same_v<T, float>);
  const std::int64_t size = by_rows ? n : m;
  const std::int64_t parts =
      worth_sharing(n, m, k) ? std::min<std::int64_t>(available_threads(), (size + kGranule - 1) / kGranule)
                             : 1;
  // The sums that threads make of their own must be large enough to be worth it, and small enough to stay
  // near.
  constexpr std::int64_t kLeastSum = 1 << 18, kMostSum = 1 << 20;
  if (parts > 1 && a.transposed() && k >= 4 * n && n * m >= kLeastSum && n * m <= kMostSum)
    return product_over_parts(pool, a, b, y, y_stride, n, m, k, accumulate, parts), finish(0, n, 0, m);
#pragma omp parallel for schedule(static) num_threads(static_cast <int>(parts)) if (parts > 1)
  for (std::int64_t part = 0; part < parts; ++part) {
    const auto [start, end] = part_of(size, part, parts, kGranule);
    if (start == end) continue;
    if (by_rows) {
      Matrix rows = a;
      rows.data = static_cast<const T*>(a.data) + start * a.row_stride;
      gemm(rows, b, y + start * y_stride, y_stride, end - start, m, k, accumulate);
      finish(start, end, 0, m);
    } else {
      Matrix columns = b;
      columns.data = static_cast<const T*>(b.data) + start * b.column_stride;
      gemm(a, columns, y + start, y_stride, n, end - start, k, accumulate);
      finish(0, n, start, end);
    }
  }
}

template <class T>
void batched_product(MemoryPool& pool, const View& a, const View& b, const View& y, bool accumulate) {
  const std::int64_t n = y.shape.at(-2), m = y.shape.at(-1), k = a.shape.at(-1);
  const std::int64_t y_stride = matrix_of(y).row_stride;
  const Matrix left = matrix_of(a), right = matrix_of(b);
  const View batch_a = batch_of(a), batch_b = batch_of(b), batch_y = batch_of(y);
  const std::int64_t products = batch_y.count(), threads = available_threads();
  const auto operands_of = [&](std::int64_t i) {
    Matrix l = left, r = right;
    l.data = a.as<T>() + offset_of(i, batch_a.shape, batch_a.strides);
    r.data = b.as<T>() + offset_of(i, batch_b.shape, batch_b.strides);
    return std::tuple{l, r, y.as<T>() + offset_of(i, batch_y.shape, batch_y.strides)};
  };
  // Whole products are shared out when they go round evenly, or nearly so.
  if (products % threads == 0 || products >= 8 * threads) {
#pragma omp parallel for schedule(static) if (worth_sharing(n * products, m, k))
    for (std::int64_t i = 0; i < products; ++i) {
      const auto [l, r, to] = operands_of(i);
      gemm(l, r, to, y_stride, n, m, k, accumulate);
    }
  } else {
    for (std::int64_t i = 0; i < products; ++i) {
      const auto [l, r, to] = operands_of(i);
      shared_product(pool, l, r, to, y_stride, n, m, k, accumulate, [](auto...) {});
    }
  }
}

/// The same of bf16 operands, each product on all threads.
void batched_bf16_product(const View& a, const View& b, const View& y, bool accumulate) {
  const std::int64_t n = y.shape.at(-2), m = y.shape.at(-1), k = a.shape.at(-1);
  const View batch_a = batch_of(a), batch_b = batch_of(b), batch_y = batch_of(y);
  const auto at = [](const View& x, std::int64_t offset) {
    return static_cast<char*>(x.data) + offset * static_cast<std::int64_t>(size_of(x.dtype));
  };
  for (std::int64_t i = 0; i < batch_y.count(); ++i) {
    Matrix left = matrix_of(a), right = matrix_of(b);
    left.data = at(a, offset_of(i, batch_a.shape, batch_a.strides));
    right.data = at(b, offset_of(i, batch_b.shape, batch_b.strides));
    gemm_bf16(left, right, at(y, offset_of(i, batch_y.shape, batch_y.strides)), y.dtype,
              matrix_of(y).row_stride, n, m, k, accumulate);
  }
}

}  // namespace

std::string CpuBackend::description() const { return gemm_description(); }
std::string CpuBackend::description(DType operands) const { return gemm_description(operands); }

void CpuBackend::matmul(const View& a, const View& b, const View& y, bool accumulate) {
  if (y.count() == 0) return;
  if (a.shape.at(-1) == 0) {
    if (!accumulate) fill(0, y);
    return;
  }
  View left = a, right = b, result = y;
  fold_batch(left, right, result);
  for (const View* view : {&left, &right}) {
    for (const int axis : {-1, -2}) {
      require(view->shape.at(axis) < std::numeric_limits<int>::max(), "matmul: a size of ",
              view->shape.at(axis), " is too large");
    }
  }
  if (a.dtype == DType::bf16 && has_bf16_products() && is_matrix(left) && is_matrix(right) &&
      is_matrix(result) && (result.strides.at(-1) == 1 || result.shape.at(-1) == 1))
    return batched_bf16_product(left, right, result, accumulate);
  // What BLAS cannot take as it lies is laid out compactly first, as float32 where it is narrower.
  const DType dtype = computing(a.dtype);
  std::deque<Scratch<char>> copies;
  const auto compact_of = [&](const View& x) {
    copies.emplace_back(pool_, static_cast<std::size_t>(x.count()) * size_of(dtype));
    return View{copies.back().data(), dtype, x.shape, compact_strides(x.shape)};
  };
  const auto fits = [&](const View& x) { return x.dtype == dtype && is_matrix(x); };
  for (View* operand : {&left, &right}) {
    if (fits(*operand)) continue;
    const View compact = compact_of(*operand);
    copy(*operand, compact);
    *operand = compact;
  }
  const View target = result;
  const bool in_place = fits(target) && (target.strides.at(-1) == 1 || target.shape.at(-1) == 1);
  if (!in_place) result = compact_of(target);
  if (!in_place && accumulate) copy(target, result);
  if (dtype == DType::f64)
    batched_product<double>(pool_, left, right, result, accumulate);
  else
    batched_product<float>(pool_, left, right, result, accumulate);
  if (!in_place) copy(result, target);
}

void CpuBackend::linear(Epilogue epilogue, const View& x, const View& weight, const View& bias,
                        const View& residual, const View& y, const View& slope) {
  const std::int64_t rows = y.shape[0], width = y.shape[1], inner = x.shape[1];
  if (y.count() == 0) return;
  dispatch_computing("linear", computing(x.dtype), [&](auto tag) {
    using T = typename decltype(tag)::type;
    // Operands and results of 16 bits have float32 ones beside them: a block is finished in those, and
    // rounded while it is in the cache.
    std::deque<Scratch<T>> wide;
    const auto as_computed = [&](const View& narrow) {
      if (!narrow.data || narrow.dtype == dtype_of<T>()) return narrow;
      return View{wide.emplace_back(pool_, static_cast<std::size_t>(narrow.count())).data(), dtype_of<T>(),
                  narrow.shape, compact_strides(narrow.shape)};
    };
    const auto widened = [&](const View& narrow) {
      const View result = as_computed(narrow);
      if (result.data != narrow.data) copy(narrow, result);
      return result;
    };
    const View values = as_computed(y), slopes = as_computed(slope);
    const Scratch<T> zeros(pool_, static_cast<std::size_t>(bias.data ? 0 : width));
    if (!bias.data) std::fill_n(zeros.data(), width, T(0));
    const epilogue::Target<T> target{values.as<T>(), slopes.as<T>(), bias.data ? bias.as<T>() : zeros.data(),
                                     width, widened(residual).template as<T>()};
    const auto finish = [&](std::int64_t first_row, std::int64_t last_row, std::int64_t first,
                            std::int64_t last) {
      epilogue::finish(epilogue, target, first_row, last_row, first, last);
      for (const auto& [from, to] : {std::pair(values, y), std::pair(slopes, slope)}) {
        for (std::int64_t row = first_row; row < last_row && to.data != from.data; ++row)
          write_run(to, row * width + first, 1, last - first, from.template as<T>() + row * width + first);
      }
    };
    if (inner == 0) {
      fill(0, values);
      return finish(0, rows, 0, width);
    }
    if (x.dtype == DType::bf16 && has_bf16_products()) {
      gemm_bf16(matrix_of(x), matrix_of(weight), values.data, values.dtype, width, rows, width, inner, false);
#pragma omp parallel for schedule(static) if (y.count() >= kParallelElements)
      for (std::int64_t row = 0; row < rows; ++row) finish(row, row + 1, 0, width);
      return;
    }
    shared_product(pool_, matrix_of(widened(x)), matrix_of(widened(weight)), target.y, width, rows, width,
                   inner, false, finish);
  });
}

}  // namespace needle
