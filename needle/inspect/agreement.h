// How far two arrays are apart: the one measure that the gradient check and all tests use.
#pragma once

#include "needle/ndarray.h"

namespace needle {

/// The largest |ours - right|, divided by the largest of: the largest |right|, `scale` (the largest incoming
/// |gradient|, for one), and 1e-30. Maxima go over the elements where `right` is finite; elsewhere NaN must
/// meet NaN and an infinity one of its sign. Against a float32 array, what is beyond float32's range counts
/// as the infinity of its sign. Infinite where the arrays differ in shape or in what is not finite.
double relative_error(const NDArray& ours, const NDArray& right, double scale = 0);

/// The largest finite |x|; 0 if there is none.
double largest_magnitude(const NDArray& x);

}  // namespace needle
