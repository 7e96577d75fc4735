// On which element types the functors of scalar_ops.h are defined.
#pragma once

#include <type_traits>

#include "backends/dtype.h"
#include "backends/scalar_ops.h"

namespace needle {

template <class F, class... Functors>
inline constexpr bool is_one_of = (std::is_same_v<F, Functors> || ...);

/// Whether a functor makes sense on elements that are computed as T.
template <class F, class T>
constexpr bool is_defined() {
  if (std::is_floating_point_v<T>) return true;
  if (std::is_same_v<T, bool>) return is_one_of<F, Equal, NotEqual>;
  return is_one_of<F, Negate, Abs, Sign, AddScalar, MultiplyScalar, Add, Subtract, Multiply, Divide, Maximum,
                   Minimum, Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual>;
}

/// Throws an Error that names the op unless it is_defined().
template <class T, class Op>
void require_defined(const Op& op, DType dtype) {
  require(std::visit([](auto f) { return is_defined<decltype(f), T>(); }, op), name_of(op),
          ": not defined for ", name_of(dtype));
}

}  // namespace needle
