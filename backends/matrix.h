// The last two axes of views as the matrices of products, and what can be said of their batches.
#pragma once

#include <cstdint>
#include <limits>

#include "backends/view.h"

namespace needle {

/// A matrix as libraries take it: row-major [rows, columns], or the transpose of one.
struct Matrix {
  const void* data;
  std::int64_t row_stride, column_stride;
  /// Of `rows` rows and `columns` columns; an axis of size 1 gets a stride that a library takes.
  Matrix(const void* elements, std::int64_t rows, std::int64_t columns, std::int64_t between_rows,
         std::int64_t between_columns)
      : data(elements), row_stride(between_rows), column_stride(between_columns) {
    if (columns == 1 && rows == 1)
      row_stride = column_stride = 1;
    else if (columns == 1)
      column_stride = row_stride == 1 ? rows : 1;
    else if (rows == 1)
      row_stride = column_stride == 1 ? columns : 1;
  }
  bool transposed() const { return column_stride != 1; }
  std::int64_t leading() const { return transposed() ? column_stride : row_stride; }
};

/// The last two axes.
inline Matrix matrix_of(const View& x) {
  return {x.data, x.shape.at(-2), x.shape.at(-1), x.strides.at(-2), x.strides.at(-1)};
}

/// Whether a library can take the last two axes as they lie.
inline bool is_matrix(const View& x) {
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  const Matrix matrix = matrix_of(x);
  if (matrix.column_stride == 1) return matrix.row_stride >= x.shape.at(-1) && matrix.row_stride <= kMost;
  return matrix.row_stride == 1 && matrix.column_stride >= x.shape.at(-2) && matrix.column_stride <= kMost;
}

/// Turns batch axes into rows of a and y where all products share one b and their rows follow on each other.
inline void fold_batch(View& a, View& b, View& y) {
  for (int batch = y.rank() - 3; batch >= 0; --batch) {
    const bool one = y.shape[batch] == 1;
    const auto follows = [&](const View& x) {
      return x.strides[batch] == x.shape[batch + 1] * x.strides[batch + 1];
    };
    if (!one && !(b.strides[batch] == 0 && follows(a) && follows(y))) return;
    for (View* x : {&a, &y}) {
      if (!one) x->shape[batch + 1] *= x->shape[batch];
      x->shape.erase(batch);
      x->strides.erase(batch);
    }
    b.shape.erase(batch);
    b.strides.erase(batch);
  }
}

/// x without its last two axes: the batch.
inline View batch_of(View x) {
  for (int i = 0; i < 2; ++i) {
    x.shape.erase(x.rank() - 1);
    x.strides.erase(x.strides.rank() - 1);
  }
  return x;
}

}  // namespace needle
