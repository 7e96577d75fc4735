// Reductions over any axes (none given: all of them); `keep` leaves the reduced axes with size 1.
#pragma once

#include <utility>

#include "needle/autograd.h"

namespace needle {

Tensor sum(const Tensor& x, const Axes& axes = {}, bool keep = false);
/// NaN over no elements.
Tensor mean(const Tensor& x, const Axes& axes = {}, bool keep = false);
/// Mean squared distance from the mean, over n - `correction` elements.
Tensor variance(const Tensor& x, const Axes& axes = {}, bool keep = false, double correction = 0);
/// Equal extremes share the gradient equally. Over no elements: an Error.
Tensor max(const Tensor& x, const Axes& axes = {}, bool keep = false);
Tensor min(const Tensor& x, const Axes& axes = {}, bool keep = false);
/// log(sum(exp(x))), without overflow; -infinity over elements that all are.
Tensor logsumexp(const Tensor& x, const Axes& axes = {}, bool keep = false);
/// Running sum along `axis`.
Tensor cumulative_sum(const Tensor& x, int axis);
/// Index (i64) of the largest along `axis`, the first among equals. No gradient.
NDArray argmax(const NDArray& x, int axis = -1);
/// The k largest along the last axis in falling order and their indices (i64). No gradient.
std::pair<NDArray, NDArray> top_k(const NDArray& x, std::int64_t k);

}  // namespace needle
