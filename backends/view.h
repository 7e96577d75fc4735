// All that a kernel sees of an array: a plain struct, passed by value to CPU loops and CUDA kernels alike.
#pragma once

#include <cstdint>

#include "backends/dtype.h"
#include "backends/shape.h"

namespace needle {

/// Elements of `dtype` at data[sum of index[axis] * strides[axis]]. Broadcasting is a stride of 0, a
/// transpose two swapped strides, so one description serves every view.
struct View {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;
  Strides strides;

  int rank() const { return shape.rank(); }
  std::int64_t count() const { return shape.count(); }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  /// The view at `index` of the first axis.
  View operator[](std::int64_t index) const {
    View inner = *this;
    inner.data = static_cast<char*>(data) + index * strides[0] * static_cast<std::int64_t>(size_of(dtype));
    inner.shape.erase(0);
    inner.strides.erase(0);
    return inner;
  }
};

/// Row-major without gaps (axes of size 1 may have any stride).
inline bool is_compact(const View& x) {
  std::int64_t expected = 1;
  for (int axis = x.rank() - 1; axis >= 0; --axis) {
    if (x.shape[axis] != 1 && x.strides[axis] != expected) return false;
    expected *= x.shape[axis];
  }
  return true;
}

}  // namespace needle
