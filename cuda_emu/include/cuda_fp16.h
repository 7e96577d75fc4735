// Emulated half precision: storage and conversions.  Kernels compute in float (needle's rule).
#pragma once

#include <cuda_runtime.h>

struct __half {
  unsigned short bits;
};

inline float __half2float(__half h) {
  const unsigned sign = unsigned(h.bits & 0x8000u) << 16, exponent = (h.bits >> 10) & 31u,
                 fraction = h.bits & 0x3ffu;
  if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | (fraction << 13));  // infinity, NaN
  if (exponent != 0) return __uint_as_float(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;  // zero, subnormal: exact
  return sign != 0 ? -magnitude : magnitude;
}

// Rounds to nearest, ties to even, like __float2half of CUDA.
__forceinline__ __half __float2half(float f) {
  const unsigned u = __float_as_uint(f), sign = (u >> 16) & 0x8000u;
  unsigned a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return {0x7fff};                                        // NaN
  if (a >= 0x477ff000u) return {static_cast<unsigned short>(sign | 0x7c00u)};  // 65520 and more: infinity
  if (a < 0x38800000u) {                              // subnormal: let the float addition round
    const float shifted = __uint_as_float(a) + 0.5f;  // its last bit is worth 2^-24
    return {static_cast<unsigned short>(sign | (__float_as_uint(shifted) - 0x3f000000u))};
  }
  a += 0xfffu + ((a >> 13) & 1u);
  return {static_cast<unsigned short>(sign | ((a - 0x38000000u) >> 13))};
}
