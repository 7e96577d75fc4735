// Rearranging: views where strides can express the result, copies where they cannot.
#pragma once

#include <utility>

#include "needle/autograd.h"

namespace needle {

/// The same elements in row-major order under another shape; one size may be -1.
Tensor reshape(const Tensor& x, const Shape& shape);
/// Axis i of the result is axis axes[i] of x.
Tensor permute(const Tensor& x, const std::vector<int>& axes);
Tensor transpose(const Tensor& x, int axis_a = -2, int axis_b = -1);
/// x repeated along new leading axes and axes of size 1; the gradient is summed over them.
Tensor broadcast_to(const Tensor& x, const Shape& shape);
/// Indices start, start + step, ... before stop along `axis`, as in Python.
Tensor slice(const Tensor& x, int axis, std::int64_t start, std::int64_t stop, std::int64_t step = 1);
/// The reverse of slice: zeros of `shape` with x in the place of the slice.
Tensor unslice(const Tensor& x, const Shape& shape, int axis, std::int64_t start, std::int64_t stop,
               std::int64_t step = 1);
Tensor flip(const Tensor& x, const Axes& axes);
Tensor unsqueeze(const Tensor& x, int axis);
Tensor squeeze(const Tensor& x, int axis);
/// Tensors joined along an existing axis; the other sizes must agree.
Tensor concatenate(const Tensors& tensors, int axis);
/// Tensors of one shape joined along a new axis.
Tensor stack(const Tensors& tensors, int axis);
/// Parts of the given sizes along `axis`; the sizes must add up.
Tensors split(const Tensor& x, const std::vector<std::int64_t>& sizes, int axis);
/// x with widths[axis] = {before, after} elements of `value` around it.
Tensor pad(const Tensor& x, const std::vector<std::pair<std::int64_t, std::int64_t>>& widths,
           double value = 0);
/// x where column - row <= diagonal (last two axes), 0 elsewhere.
Tensor lower_triangle(const Tensor& x, std::int64_t diagonal = 0);
/// x where column - row >= diagonal, 0 elsewhere.
Tensor upper_triangle(const Tensor& x, std::int64_t diagonal = 0);

}  // namespace needle
