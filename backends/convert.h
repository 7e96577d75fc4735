// Conversion between element types.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "backends/dtype.h"

namespace needle {

/// x as a To: towards zero from floats to whole numbers, which take their nearest limit for what lies outside
/// and 0 for NaN.
template <class To, class From>
HOST_DEVICE inline To converted(From x) {
  using Source = Arithmetic<From>;
  const Source value = static_cast<Source>(x);
  if constexpr (std::is_same_v<To, bool>) {
    return value != Source(0);
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<Source>) {
    constexpr Source kLowest = static_cast<Source>(std::numeric_limits<To>::lowest());
    if (value >= -kLowest) return std::numeric_limits<To>::max();
    if (value < kLowest) return std::numeric_limits<To>::lowest();
    return value == value ? static_cast<To>(value) : To(0);
  } else {
    return static_cast<To>(static_cast<Arithmetic<To>>(value));
  }
}

/// Division of whole numbers other than by 0. The one quotient that does not fit wraps around.
template <class T>
HOST_DEVICE inline T quotient(T a, T b) {
  return b == T(-1) ? static_cast<T>(0 - static_cast<std::make_unsigned_t<T>>(a)) : static_cast<T>(a / b);
}

/// function(TypeTag) for words of the size of an element, where only its bits matter.
template <class F>
void dispatch_size(DType dtype, const F& function) {
  switch (size_of(dtype)) {
    case 1:
      return function(TypeTag<std::uint8_t>{});
    case 2:
      return function(TypeTag<std::uint16_t>{});
    case 4:
      return function(TypeTag<std::uint32_t>{});
    default:
      return function(TypeTag<std::uint64_t>{});
  }
}

}  // namespace needle
