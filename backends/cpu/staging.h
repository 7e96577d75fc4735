// Runs of strided elements as contiguous ones, so that each kernel is one plain loop that vectorises.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/convert.h"
#include "backends/view.h"

namespace needle {

/// to[i * to_stride] = from[i * from_stride], converted.
template <class From, class To>
inline void copy_run(const From* from, std::int64_t from_stride, To* to, std::int64_t to_stride,
                     std::int64_t count) {
  if (from_stride == 0 && to_stride == 1) {
    std::fill_n(to, count, converted<To>(from[0]));
  } else if (from_stride == 1 && to_stride == 1) {
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) to[i] = converted<To>(from[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i * to_stride] = converted<To>(from[i * from_stride]);
  }
}

/// Calls function(TypeTag) for `dtype` if T computes for it: T itself, and the 16-bit formats for float.
template <class T, class F>
inline void dispatch_stored(DType dtype, const F& function) {
  if constexpr (std::is_same_v<T, float>) {
    if (dtype == DType::bf16) return function(TypeTag<BFloat16>{});
    if (dtype == DType::f16) return function(TypeTag<Float16>{});
  }
  require(dtype == dtype_of<T>(), "an array of ", name_of(dtype), " is computed in no ",
          name_of(dtype_of<T>()));
  function(TypeTag<T>{});
}

/// A run of `x` as contiguous elements of T: where it lies if it lies so already, otherwise copied into
/// `buffer`.
template <class T>
const T* read_run(const View& x, std::int64_t offset, std::int64_t stride, std::int64_t count, T* buffer) {
  if (stride == 1 && x.dtype == dtype_of<T>()) return x.as<T>() + offset;
  dispatch_stored<T>(x.dtype, [&](auto tag) {
    using Stored = typename decltype(tag)::type;
    copy_run(x.as<Stored>() + offset, stride, buffer, 1, count);
  });
  return buffer;
}

/// Where to write a run of `y`: in place, or into `buffer`, from which write_run then takes it.
template <class T>
T* run_target(const View& y, std::int64_t offset, std::int64_t stride, T* buffer) {
  return stride == 1 && y.dtype == dtype_of<T>() ? y.as<T>() + offset : buffer;
}

/// Brings a run that run_target() put into `buffer` to its place in `y`.
template <class T>
void write_run(const View& y, std::int64_t offset, std::int64_t stride, std::int64_t count, const T* buffer) {
  if (stride == 1 && y.dtype == dtype_of<T>()) return;
  dispatch_stored<T>(y.dtype, [&](auto tag) {
    using Stored = typename decltype(tag)::type;
    copy_run(buffer, 1, y.as<Stored>() + offset, stride, count);
  });
}

}  // namespace needle
