// exp, log, tanh, erf and their relatives: for float branch-free, so that loops over them vectorise; for
// double the standard library's. Float errors are below 5 units in the last place; of normal_cdf, whose lower
// tail is cut short, below 6e-8 in all.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "backends/host_device.h"

namespace needle::math {

template <class T>
HOST_DEVICE inline T infinity() {
  return std::numeric_limits<T>::infinity();
}

namespace detail {

/// x = n ln 2 + r with |r| <= ln 2 / 2; `tail` = exp(r) - 1. Polynomial fitted to 2e-8 relative.
struct ExponentialParts {
  float n, tail;
};

HOST_DEVICE inline ExponentialParts split_exponential(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float n = (x * 1.44269504f + kRound) - kRound;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  const float polynomial =
      0.5f + r * (0.16666537f + r * (0.041666340f + r * (0.0083674340f + r * 0.0013942162f)));
  return {n, r + r * r * polynomial};
}

/// 2^n for whole n in [-126, 127].
HOST_DEVICE inline float power_of_two(float n) {
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(n + 12583039.0f) - 0x4B400000u) << 23);
}

}  // namespace detail

HOST_DEVICE inline float exp(float x) {
  const float clamped = x < -104.0f ? -104.0f : (x > 89.0f ? 89.0f : x);
  const detail::ExponentialParts parts = detail::split_exponential(clamped);
  // Two factors, so that results below 2^-126 and above 2^127 come out right.
  constexpr float kRound = 12582912.0f;
  const float half = (parts.n * 0.5f + kRound) - kRound;
  const float y = (1.0f + parts.tail) * detail::power_of_two(half) * detail::power_of_two(parts.n - half);
  return x > 88.72284f ? infinity<float>() : y;
}
HOST_DEVICE inline double exp(double x) { return std::exp(x); }

/// exp(x) for x <= 0, faster; results below exp(-87), subnormal numbers among them, count as 0: the weights
/// of a softmax.
HOST_DEVICE inline float exp_nonpositive(float x) {
  const detail::ExponentialParts parts = detail::split_exponential(x < -87.0f ? -87.0f : x);
  const float y = (1.0f + parts.tail) * detail::power_of_two(parts.n);
  return x < -87.0f ? 0.0f : y;
}
HOST_DEVICE inline double exp_nonpositive(double x) { return std::exp(x); }

/// exp(x) - 1 without cancellation near 0, for x <= 80.
HOST_DEVICE inline float expm1_bounded(float x) {
  const float clamped = x < -40.0f ? -40.0f : (x > 80.0f ? 80.0f : x);
  const detail::ExponentialParts parts = detail::split_exponential(clamped);
  const float scale = detail::power_of_two(parts.n);
  return parts.tail * scale + (scale - 1.0f);
}

HOST_DEVICE inline float log(float x) {
  const bool subnormal = x < 1.17549435e-38f;
  const float scaled = subnormal ? x * 8388608.0f : x;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(scaled);
  // Exponent such that the mantissa m lies in [sqrt(1/2), sqrt(2)).
  const std::int32_t exponent = static_cast<std::int32_t>(bits - 0x3F3504F3u) >> 23;
  const float m = std::bit_cast<float>(bits - (static_cast<std::uint32_t>(exponent) << 23));
  const float n = static_cast<float>(exponent) - (subnormal ? 23.0f : 0.0f);
  const float s = (m - 1.0f) / (m + 1.0f), z = s * s;  // log m = 2 artanh s
  const float series = z * (0.66666667f + z * (0.4f + z * (0.28571429f + z * 0.22222222f)));
  const float y = n * 0.693359375f + (s * (2.0f + series) - n * 2.12194440e-4f);
  const float finite = x == infinity<float>() ? x : y;
  return x > 0.0f ? finite : (x == 0.0f ? -infinity<float>() : std::numeric_limits<float>::quiet_NaN());
}
HOST_DEVICE inline double log(double x) { return std::log(x); }

/// log(1 + x) for x in [0, 1] (Kahan's correction of the rounded sum).
HOST_DEVICE inline float log1p_unit(float x) {
  const float sum = 1.0f + x, rounded = sum - 1.0f;
  return rounded == 0.0f ? x : log(sum) * (x / rounded);
}
HOST_DEVICE inline double log1p_unit(double x) { return std::log1p(x); }

HOST_DEVICE inline float tanh(float x) {
  const float e = expm1_bounded(2.0f * (x < -20.0f ? -20.0f : (x > 20.0f ? 20.0f : x)));
  return e / (e + 2.0f);
}
HOST_DEVICE inline double tanh(double x) { return std::tanh(x); }

HOST_DEVICE inline float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
HOST_DEVICE inline double sigmoid(double x) {
  const double e = std::exp(-std::fabs(x));
  return x < 0 ? e / (1 + e) : 1 / (1 + e);
}

namespace detail {

/// -log(erfc(a)) for a >= 0: a polynomial times a, fitted on [0, 4] to 4e-9 of erf; beyond 4 a continuation
/// that only has to make erfc vanish.
HOST_DEVICE inline float negative_log_erfc(float a) {
  const float t = a > 4.0f ? 4.0f : a;
  float q = -9.256480552721769e-06f;
  q = q * t + 0.00011764303781092167f;
  q = q * t - 0.0006328425370156765f;
  q = q * t + 0.001667036791332066f;
  q = q * t - 0.00016040408809203655f;
  q = q * t - 0.019153060391545296f;
  q = q * t + 0.10277783125638962f;
  q = q * t + 0.6366193890571594f;
  q = q * t + 1.128379225730896f;
  return a * (q + (a - t));
}

}  // namespace detail

HOST_DEVICE inline float erf(float x) {
  const float a = x < 0.0f ? -x : x;
  const float y = -expm1_bounded(-detail::negative_log_erfc(a));
  return x < 0.0f ? -y : y;
}
HOST_DEVICE inline double erf(double x) { return std::erf(x); }

/// The standard normal distribution function.
HOST_DEVICE inline float normal_cdf(float x) {
  const float a = (x < 0.0f ? -x : x) * 0.70710678f;
  const float tail = 0.5f * exp_nonpositive(-detail::negative_log_erfc(a));
  return x < 0.0f ? tail : 1.0f - tail;
}
HOST_DEVICE inline double normal_cdf(double x) { return 0.5 * std::erfc(-x * 0.7071067811865475244); }

}  // namespace needle::math
