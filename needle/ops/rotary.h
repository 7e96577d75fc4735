// Rotary positions.
#pragma once

#include "needle/autograd.h"

namespace needle {

/// How rotary() pairs the entries of a row: (r, r + width/2), or (2r, 2r + 1).
enum class RotaryPairs { halves, interleaved };

/// Turns each pair r of x [batch, heads, time, width] by position / base^(2r/width) (Su et al. 2021,
/// section 3.2.2); positions i64 [batch, time]. An odd width is an Error.
Tensor rotary(const Tensor& x, const NDArray& positions, double base = 10000,
              RotaryPairs pairs = RotaryPairs::halves);
/// rotary() in simple ops.
Tensor rotary_definition(const Tensor& x, const NDArray& positions, double base, RotaryPairs pairs);

}  // namespace needle
