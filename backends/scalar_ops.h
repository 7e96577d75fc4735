// Scalar maths, written once: functors for host and device alike. The variants at the end are what a Backend
// is asked to map over arrays.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <variant>

#include "backends/math.h"

namespace needle {

// --- one operand ---------------------------------------------------------------------------------------

struct Negate {
  static constexpr const char* kName = "negate";
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return -x;
  }
};
struct Exp {
  static constexpr const char* kName = "exp";
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return math::exp(x);
  }
};
struct Log {
  static constexpr const char* kName = "log";
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return math::log(x);
  }
};
struct Sqrt {
  static constexpr const char* kName = "sqrt";
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return std::sqrt(x);
  }
};
struct Tanh {
  static constexpr const char* kName = "tanh";
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return math::tanh(x);
  }
};
struct Sin {
  static constexpr const char* kName = "sin";
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return std::sin(x);
  }
};
struct Cos {
  static constexpr const char* kName = "cos";
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return std::cos(x);
  }
};
struct Erf {
  static constexpr const char* kName = "erf";
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return math::erf(x);
  }
};
struct Sigmoid {
  static constexpr const char* kName = "sigmoid";
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return math::sigmoid(x);
  }
};
/// max(x, 0); NaN stays NaN.
struct Relu {
  static constexpr const char* kName = "relu";
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return x < T(0) ? T(0) : x;
  }
};
struct Abs {
  static constexpr const char* kName = "abs";
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return x < T(0) ? -x : (x == T(0) ? T(0) : x);
  }
};
/// -1, 0 or 1; 0 for NaN.
struct Sign {
  static constexpr const char* kName = "sign";
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return x > T(0) ? T(1) : (x < T(0) ? T(-1) : T(0));
  }
};
struct Silu {
  static constexpr const char* kName = "silu";
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return x * math::sigmoid(x);
  }
};
/// log(1 + exp(x)), without overflow.
struct Softplus {
  static constexpr const char* kName = "softplus";
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return (x > T(0) ? x : (x == x ? T(0) : x)) + math::log1p_unit(math::exp(x > T(0) ? -x : x));
  }
};
/// x times the standard normal distribution function (Hendrycks and Gimpel 2016, section 2).
struct Gelu {
  static constexpr const char* kName = "gelu";
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return x * math::normal_cdf(x);
  }
};
/// The tanh approximation of Gelu (the same paper): x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
struct GeluTanh {
  static constexpr const char* kName = "gelu_tanh";
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    const T inner = T(0.7978845608028653559) * (x + T(0.044715) * x * x * x);
    return T(0.5) * x * (T(1) + math::tanh(inner));
  }
};
/// x limited to [low, high]; NaN stays NaN.
struct Clamp {
  static constexpr const char* kName = "clamp";
  double low, high;
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return x < T(low) ? T(low) : (x > T(high) ? T(high) : x);
  }
};
struct AddScalar {
  static constexpr const char* kName = "add_scalar";
  double value;
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return x + T(value);
  }
};
struct MultiplyScalar {
  static constexpr const char* kName = "multiply_scalar";
  double value;
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return x * T(value);
  }
};
struct PowerScalar {
  static constexpr const char* kName = "power_scalar";
  double exponent;
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    if (exponent == 2) return x * x;
    return std::pow(x, T(exponent));
  }
};

using UnaryOp = std::variant<Negate, Exp, Log, Sqrt, Tanh, Sin, Cos, Erf, Sigmoid, Relu, Abs, Sign, Silu,
                             Softplus, Gelu, GeluTanh, Clamp, AddScalar, MultiplyScalar, PowerScalar>;

// --- two operands --------------------------------------------------------------------------------------

struct Add {
  static constexpr const char* kName = "add";
  template <class T>
  HOST_DEVICE T operator()(T a, T b) const {
    return a + b;
  }
};
struct Subtract {
  static constexpr const char* kName = "subtract";
  template <class T>
  HOST_DEVICE T operator()(T a, T b) const {
    return a - b;
  }
};
struct Multiply {
  static constexpr const char* kName = "multiply";
  template <class T>
  HOST_DEVICE T operator()(T a, T b) const {
    return a * b;
  }
};
struct Divide {
  static constexpr const char* kName = "divide";
  template <class T>
  HOST_DEVICE T operator()(T a, T b) const {
    return a / b;
  }
};
struct Power {
  static constexpr const char* kName = "power";
  template <class T>
  HOST_DEVICE T operator()(T a, T b) const {
    return std::pow(a, b);
  }
};
/// The larger; NaN if either is NaN.
struct Maximum {
  static constexpr const char* kName = "maximum";
  template <class T>
  HOST_DEVICE T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
};
/// The smaller; NaN if either is NaN.
struct Minimum {
  static constexpr const char* kName = "minimum";
  template <class T>
  HOST_DEVICE T operator()(T a, T b) const {
    return a < b || a != a ? a : b;
  }
};

/// A gradient times a local derivative: where nothing arrives (0), nothing passes on, even if the derivative
/// is infinite.
struct GradientProduct {
  static constexpr const char* kName = "gradient_product";
  template <class T>
  HOST_DEVICE T operator()(T g, T derivative) const {
    return g == T(0) ? T(0) : g * derivative;
  }
};

// Gradients in one pass: the operands are what the derivative reads and the incoming gradient.
struct ReluGradient {
  static constexpr const char* kName = "relu_gradient";
  template <class T>
  HOST_DEVICE T operator()(T x, T g) const {
    return x <= T(0) ? T(0) : g;
  }
};
struct TanhGradient {
  static constexpr const char* kName = "tanh_gradient";
  template <class T>
  HOST_DEVICE T operator()(T y, T g) const {
    return g * (T(1) - y * y);
  }
};
struct SigmoidGradient {
  static constexpr const char* kName = "sigmoid_gradient";
  template <class T>
  HOST_DEVICE T operator()(T y, T g) const {
    return g * y * (T(1) - y);
  }
};
struct SiluGradient {
  static constexpr const char* kName = "silu_gradient";
  template <class T>
  HOST_DEVICE T operator()(T x, T g) const {
    const T s = math::sigmoid(x);
    return g * s * (T(1) + x * (T(1) - s));
  }
};
struct GeluGradient {
  static constexpr const char* kName = "gelu_gradient";
  template <class T>
  HOST_DEVICE T operator()(T x, T g) const {
    const T density = T(0.3989422804014326779) * math::exp_nonpositive(T(-0.5) * x * x);
    return g * (math::normal_cdf(x) + x * density);
  }
};
struct GeluTanhGradient {
  static constexpr const char* kName = "gelu_tanh_gradient";
  template <class T>
  HOST_DEVICE T operator()(T x, T g) const {
    // Beyond 20 the slope is 0 or 1 to the last digit, and the cube of a large x would be infinite.
    const T y = x < T(-20) ? T(-20) : (x > T(20) ? T(20) : x);
    const T t = math::tanh(T(0.7978845608028653559) * (y + T(0.044715) * y * y * y));
    const T inner_slope = T(0.7978845608028653559) * (T(1) + T(3 * 0.044715) * y * y);
    return g * T(0.5) * (T(1) + t + y * (T(1) - t * t) * inner_slope);
  }
};

// Comparisons and logic: the result is a boolean array. NaN compares false, except for NotEqual.
struct Equal {
  static constexpr const char* kName = "equal";
  template <class T>
  HOST_DEVICE bool operator()(T a, T b) const {
    return a == b;
  }
};
struct NotEqual {
  static constexpr const char* kName = "not_equal";
  template <class T>
  HOST_DEVICE bool operator()(T a, T b) const {
    return a != b;
  }
};
struct Less {
  static constexpr const char* kName = "less";
  template <class T>
  HOST_DEVICE bool operator()(T a, T b) const {
    return a < b;
  }
};
struct LessEqual {
  static constexpr const char* kName = "less_equal";
  template <class T>
  HOST_DEVICE bool operator()(T a, T b) const {
    return a <= b;
  }
};
struct Greater {
  static constexpr const char* kName = "greater";
  template <class T>
  HOST_DEVICE bool operator()(T a, T b) const {
    return a > b;
  }
};
struct GreaterEqual {
  static constexpr const char* kName = "greater_equal";
  template <class T>
  HOST_DEVICE bool operator()(T a, T b) const {
    return a >= b;
  }
};

using BinaryOp = std::variant<Add, Subtract, Multiply, Divide, Power, Maximum, Minimum, GradientProduct,
                              ReluGradient, TanhGradient, SigmoidGradient, SiluGradient, GeluGradient,
                              GeluTanhGradient, Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual>;

/// Whether a binary functor answers with a boolean.
template <class Op>
inline constexpr bool is_comparison = std::is_same_v<decltype(Op{}(1.0f, 1.0f)), bool>;

inline bool compares(const BinaryOp& op) {
  return std::visit([](auto f) { return is_comparison<decltype(f)>; }, op);
}

// --- reductions ----------------------------------------------------------------------------------------

/// Sum over the reduced axes; 0 for none.
struct Sum {
  static constexpr const char* kName = "sum";
  template <class T>
  static HOST_DEVICE T identity() {
    return T(0);
  }
  template <class T>
  HOST_DEVICE T operator()(T a, T b) const {
    return a + b;
  }
};
/// Largest value over the reduced axes, NaN if any is NaN; an error over none.
struct Max {
  static constexpr const char* kName = "max";
  template <class T>
  static HOST_DEVICE T identity() {
    return std::numeric_limits<T>::has_infinity ? -math::infinity<T>() : std::numeric_limits<T>::lowest();
  }
  template <class T>
  HOST_DEVICE T operator()(T a, T b) const {
    return Maximum{}(a, b);
  }
};
/// Smallest value over the reduced axes, NaN if any is NaN; an error over none.
struct Min {
  static constexpr const char* kName = "min";
  template <class T>
  static HOST_DEVICE T identity() {
    return std::numeric_limits<T>::has_infinity ? math::infinity<T>() : std::numeric_limits<T>::max();
  }
  template <class T>
  HOST_DEVICE T operator()(T a, T b) const {
    return Minimum{}(a, b);
  }
};

using ReduceOp = std::variant<Sum, Max, Min>;

/// The name of the functor that a variant of them holds.
template <class... Functors>
const char* name_of(const std::variant<Functors...>& op) {
  return std::visit([](auto f) { return decltype(f)::kName; }, op);
}

}  // namespace needle
