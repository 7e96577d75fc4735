// When two arrays agree, said once for all tests.
#pragma once

#include <gtest/gtest.h>

#include "needle/inspect/agreement.h"

namespace needle {

/// The relative error within which values of that type must agree.
inline double bound_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 1e-9;
    case DType::f32:
      return 1e-5;
    case DType::bf16:
    case DType::f16:
      return 1e-2;
    default:
      return 0;
  }
}

/// Whether `ours` is `right` within `bound`, by relative_error(); `scale` is the largest incoming |gradient|
/// where gradients are compared.
inline testing::AssertionResult agrees(const NDArray& ours, const NDArray& right, double bound,
                                       double scale = 0) {
  if (!ours.defined()) return testing::AssertionFailure() << "there is no array";
  const double error = relative_error(ours, right, scale);
  if (error <= bound) return testing::AssertionSuccess();
  testing::AssertionResult failure = testing::AssertionFailure();
  failure << "the relative error is " << error << ", allowed " << bound;
  if (right.count() <= 64) return failure << "\nours:  " << ours << "\nright: " << right;
  return failure << "; shapes: " << ours.shape() << " and " << right.shape();
}

/// The same with the bound of our type.
inline testing::AssertionResult agrees(const NDArray& ours, const NDArray& right) {
  return agrees(ours, right, ours.defined() ? bound_of(ours.dtype()) : 0);
}

/// Whether all elements have the same bits, NaN and the sign of 0 aside.
inline testing::AssertionResult same(const NDArray& ours, const NDArray& right) {
  return agrees(ours, right, 0);
}

}  // namespace needle
