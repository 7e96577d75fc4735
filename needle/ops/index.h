// Picking and placing by index. Index arrays are i64 constants; an index outside is an Error with its
// position.
#pragma once

#include "needle/autograd.h"

namespace needle {

/// Rows of a table (an embedding): table [rows, width], ids [...] -> [..., width]. Repeated ids add their
/// gradients up.
Tensor gather_rows(const Tensor& table, const NDArray& ids);
/// Zeros [rows, width] with x [..., width] added at the rows `ids` [...].
Tensor scatter_rows(const Tensor& x, const NDArray& ids, std::int64_t rows);
/// y[.., i, ..] = x[.., index[.., i, ..], ..] along `axis`; index has the shape of the result.
Tensor gather(const Tensor& x, int axis, const NDArray& index);
/// Zeros of `shape` with x[.., i, ..] added at index[.., i, ..] along `axis`; index has the shape of x.
Tensor scatter_add(const Tensor& x, int axis, const NDArray& index, const Shape& shape);
/// ids [...] -> [..., classes]: 1 at the id, 0 elsewhere (everywhere for an id outside).
NDArray one_hot(const NDArray& ids, std::int64_t classes, DType dtype = DType::f32);

}  // namespace needle
