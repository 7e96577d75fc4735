// Matrix products through OpenBLAS, split over the threads by us: each calls it single-threaded on rows of
// its own.
#include <cblas.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <limits>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/loops.h"
#include "backends/cpu/parallel.h"
#include "backends/cpu/scratch.h"

namespace needle {

namespace {

/// OpenBLAS picks its kernels by the processor's model number, in a constructor of its own, and falls back to
/// those of 2004 on a model that is newer than itself: seven times slower. This earlier constructor picks by
/// instruction set.
__attribute__((constructor(101))) void choose_openblas_kernels() {
#ifdef __x86_64__
  __builtin_cpu_init();
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  const char* kernels = wide                                                              ? "SkylakeX"
                        : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? "Haswell"
                                                                                          : nullptr;
  if (kernels) setenv("OPENBLAS_CORETYPE", kernels, 0);
#endif
}

/// A matrix as BLAS takes it: row-major [rows, columns], or the transpose of one.
struct Matrix {
  const void* data;
  std::int64_t row_stride, column_stride;
  bool transposed() const { return column_stride != 1; }
  int leading() const { return static_cast<int>(transposed() ? column_stride : row_stride); }
};

/// The last two axes with strides that BLAS can take; axes of size 1 have no stride of their own.
bool blas_strides(const View& x, std::int64_t& row_stride, std::int64_t& column_stride) {
  const std::int64_t rows = x.shape.at(-2), columns = x.shape.at(-1);
  row_stride = x.strides.at(-2);
  column_stride = x.strides.at(-1);
  if (columns == 1 && rows == 1)
    row_stride = column_stride = 1;
  else if (columns == 1)
    column_stride = row_stride == 1 ? rows : 1;
  else if (rows == 1)
    row_stride = column_stride == 1 ? columns : 1;
  if (column_stride == 1) return row_stride >= std::max<std::int64_t>(columns, 1);
  return row_stride == 1 && column_stride >= std::max<std::int64_t>(rows, 1);
}

template <class T>
void blas_product(const Matrix& a, const Matrix& b, T* y, std::int64_t y_stride, std::int64_t n,
                  std::int64_t m, std::int64_t k, bool accumulate) {
  const auto ta = a.transposed() ? CblasTrans : CblasNoTrans, tb = b.transposed() ? CblasTrans : CblasNoTrans;
  const int rows = static_cast<int>(n), columns = static_cast<int>(m), inner = static_cast<int>(k),
            ldy = static_cast<int>(y_stride);
  const T *left = static_cast<const T*>(a.data), *right = static_cast<const T*>(b.data);
  if constexpr (std::is_same_v<T, float>) {
    cblas_sgemm(CblasRowMajor, ta, tb, rows, columns, inner, 1, left, a.leading(), right, b.leading(),
                accumulate ? 1 : 0, y, ldy);
  } else {
    cblas_dgemm(CblasRowMajor, ta, tb, rows, columns, inner, 1, left, a.leading(), right, b.leading(),
                accumulate ? 1 : 0, y, ldy);
  }
}

/// One product, its rows or columns (whichever are more) shared out to the threads in equal blocks.
template <class T>
void shared_product(const Matrix& a, const Matrix& b, T* y, std::int64_t y_stride, std::int64_t n,
                    std::int64_t m, std::int64_t k, bool accumulate) {
  constexpr std::int64_t kGranule = 16;           // rows or columns that a kernel takes at once
  constexpr double kSmallProduct = 64 * 64 * 64;  // below it a second thread costs more than it gains
  const bool by_rows = n >= m;
  const std::int64_t size = by_rows ? n : m;
  const double work = static_cast<double>(n) * static_cast<double>(m) * static_cast<double>(k);
  const std::int64_t parts =
      work < kSmallProduct ? 1
                           : std::min<std::int64_t>(available_threads(), (size + kGranule - 1) / kGranule);
#pragma omp parallel for schedule(static) num_threads(static_cast <int>(parts)) if (parts > 1)
  for (std::int64_t part = 0; part < parts; ++part) {
    const auto [start, end] = part_of(size, part, parts, kGranule);
    if (start == end) continue;
    if (by_rows) {
      const Matrix rows{static_cast<const T*>(a.data) + start * a.row_stride, a.row_stride, a.column_stride};
      blas_product(rows, b, y + start * y_stride, y_stride, end - start, m, k, accumulate);
    } else {
      const Matrix columns{static_cast<const T*>(b.data) + start * b.column_stride, b.row_stride,
                           b.column_stride};
      blas_product(a, columns, y + start, y_stride, n, end - start, k, accumulate);
    }
  }
}

/// The batch axes of the three operands as one loop over products.
struct BatchLoop {
  std::int64_t count = 1;
  Shape sizes;
  Strides a, b, y;
  BatchLoop(const View& left, const View& right, const View& result) {
    for (int axis = 0; axis + 2 < result.rank(); ++axis) {
      sizes.push_back(result.shape[axis]);
      a.push_back(left.strides[axis]);
      b.push_back(right.strides[axis]);
      y.push_back(result.strides[axis]);
      count *= result.shape[axis];
    }
  }
  static std::int64_t offset(std::int64_t index, const Shape& sizes, const Strides& strides) {
    std::int64_t result = 0;
    for (int axis = sizes.rank() - 1; axis >= 0; --axis) {
      result += index % sizes[axis] * strides[axis];
      index /= sizes[axis];
    }
    return result;
  }
};

template <class T>
void batched_product(const View& a, const View& b, const View& y, bool accumulate) {
  const std::int64_t n = y.shape.at(-2), m = y.shape.at(-1), k = a.shape.at(-1),
                     y_stride = std::max(y.strides.at(-2), m);
  Matrix left{a.data, 0, 0}, right{b.data, 0, 0};
  blas_strides(a, left.row_stride, left.column_stride);
  blas_strides(b, right.row_stride, right.column_stride);
  const BatchLoop batch(a, b, y);
  const auto product_at = [&](std::int64_t i) {
    Matrix l = left, r = right;
    l.data = a.as<T>() + BatchLoop::offset(i, batch.sizes, batch.a);
    r.data = b.as<T>() + BatchLoop::offset(i, batch.sizes, batch.b);
    return std::tuple{l, r, y.as<T>() + BatchLoop::offset(i, batch.sizes, batch.y)};
  };
  if (batch.count >= available_threads()) {
#pragma omp parallel for schedule(static) if (batch.count > 1)
    for (std::int64_t i = 0; i < batch.count; ++i) {
      const auto [l, r, to] = product_at(i);
      blas_product(l, r, to, y_stride, n, m, k, accumulate);
    }
  } else {
    for (std::int64_t i = 0; i < batch.count; ++i) {
      const auto [l, r, to] = product_at(i);
      shared_product(l, r, to, y_stride, n, m, k, accumulate);
    }
  }
}

}  // namespace

std::string CpuBackend::description() const {
  return std::string(openblas_get_config()) + ", kernels " + openblas_get_corename();
}

void CpuBackend::matmul(const View& a, const View& b, const View& y, bool accumulate) {
  if (y.count() == 0) return;
  if (a.shape.at(-1) == 0) {
    if (!accumulate) fill(0, y);
    return;
  }
  for (const View* view : {&a, &b, &y}) {
    for (const int axis : {-1, -2}) {
      require(view->shape.at(axis) < std::numeric_limits<int>::max(), "matmul: a size of ",
              view->shape.at(axis), " is too large");
    }
  }
  // What BLAS cannot take as it lies is laid out compactly first.
  const bool half = a.dtype == DType::bf16 || a.dtype == DType::f16;
  const DType dtype = half ? DType::f32 : a.dtype;
  std::deque<Scratch<double>> copies;
  const auto compact_of = [&](const View& x) {
    copies.emplace_back(
        pool_, (static_cast<std::size_t>(x.count()) * size_of(dtype) + sizeof(double) - 1) / sizeof(double));
    return View{copies.back().data(), dtype, x.shape, compact_strides(x.shape)};
  };
  const auto prepared = [&](const View& x) {
    std::int64_t row_stride, column_stride;
    if (!half && blas_strides(x, row_stride, column_stride)) return x;
    const View copied = compact_of(x);
    copy(x, copied);
    return copied;
  };
  const View left = prepared(a), right = prepared(b);
  const bool y_fits = !half && (y.strides.at(-1) == 1 || y.shape.at(-1) == 1);
  const View result = y_fits ? y : compact_of(y);
  if (!y_fits && accumulate) copy(y, result);
  if (dtype == DType::f64)
    batched_product<double>(left, right, result, accumulate);
  else
    batched_product<float>(left, right, result, accumulate);
  if (!y_fits) copy(result, y);
}

}  // namespace needle
