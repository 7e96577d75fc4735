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

  HOST_DEVICE int rank() const { return shape.rank(); }
  HOST_DEVICE std::int64_t count() const { return shape.count(); }
  template <class T>
  HOST_DEVICE T* as() const {
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

/// Where element number `index`, counted row-major, lies in a view of that shape.
HOST_DEVICE inline std::int64_t offset_of(std::int64_t index, const Shape& shape, const Strides& strides) {
  std::int64_t offset = 0;
  for (int axis = shape.rank() - 1; axis > 0; --axis) {
    offset += index % shape[axis] * strides[axis];
    index /= shape[axis];
  }
  return shape.rank() == 0 ? 0 : offset + index * strides[0];
}

/// All axes but the last as rows of the last: the views that row kernels take.
inline std::int64_t rows_of(const View& x) {
  return x.rank() == 0 ? 1 : x.count() / std::max<std::int64_t>(x.shape.at(-1), 1);
}

}  // namespace needle
