// Element types, and the two 16-bit storage formats with their conversions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

#include "backends/error.h"
#include "backends/host_device.h"

namespace needle {

/// Element types. f32 computes, f64 checks; bf16 and f16 are storage with float32 arithmetic; i32 and i64
/// hold ids; boolean is one byte, 0 or 1; i8 holds the numbers of quantised weights.
enum class DType : std::uint8_t { f32, f64, bf16, f16, i32, i64, boolean, i8 };

/// The upper half of a float32, rounded to nearest even.
struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  HOST_DEVICE explicit BFloat16(float x) {
    const std::uint32_t raw = std::bit_cast<std::uint32_t>(x);
    const bool is_nan = (raw & 0x7FFFFFFFu) > 0x7F800000u;
    bits =
        static_cast<std::uint16_t>(is_nan ? (raw >> 16) | 0x40u : (raw + 0x7FFFu + ((raw >> 16) & 1u)) >> 16);
  }
  HOST_DEVICE explicit operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
};

/// IEEE 754 binary16, rounded to nearest even.
struct Float16 {
  std::uint16_t bits = 0;

  Float16() = default;
  HOST_DEVICE explicit Float16(float x) {
    const std::uint32_t raw = std::bit_cast<std::uint32_t>(x), sign = (raw >> 16) & 0x8000u;
    const std::uint32_t magnitude = raw & 0x7FFFFFFFu;
    if (magnitude >= 0x47800000u) {  // at least 65536, infinite or NaN
      bits = static_cast<std::uint16_t>(sign | (magnitude > 0x7F800000u ? 0x7E00u : 0x7C00u));
    } else if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 aligns the mantissa and rounds it
      const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
      bits = static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(aligned) - 0x3F000000u));
    } else {
      const std::uint32_t rounded = magnitude + 0xC8000FFFu + ((magnitude >> 13) & 1u);
      bits = static_cast<std::uint16_t>(sign | (rounded >> 13));
    }
  }
  HOST_DEVICE explicit operator float() const {
    const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16, exponent = bits & 0x7C00u;
    const std::uint32_t mantissa = bits & 0x03FFu;
    if (exponent == 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
    if (exponent == 0) {
      const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
      return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
    }
    return std::bit_cast<float>(sign | ((std::uint32_t{bits & 0x7FFFu} << 13) + 0x38000000u));
  }
};

/// The type in which arithmetic on T is done: float for the 16-bit formats, T itself otherwise.
template <class T>
using Arithmetic = std::conditional_t<std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>, float, T>;

/// Names a type inside a generic lambda: `dispatch(dtype, [](auto tag) { using T = typename
/// decltype(tag)::type; })`.
template <class T>
struct TypeTag {
  using type = T;
};

/// The DType of a C++ element type.
template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>)
    return DType::f32;
  else if constexpr (std::is_same_v<T, double>)
    return DType::f64;
  else if constexpr (std::is_same_v<T, BFloat16>)
    return DType::bf16;
  else if constexpr (std::is_same_v<T, Float16>)
    return DType::f16;
  else if constexpr (std::is_same_v<T, std::int32_t>)
    return DType::i32;
  else if constexpr (std::is_same_v<T, std::int64_t>)
    return DType::i64;
  else if constexpr (std::is_same_v<T, std::int8_t>)
    return DType::i8;
  else {
    static_assert(std::is_same_v<T, bool>, "no such element type");
    return DType::boolean;
  }
}

/// Calls `function` with the TypeTag of `dtype`; i8, which nothing computes with, is an Error.
template <class F>
decltype(auto) dispatch(DType dtype, F&& function) {
  switch (dtype) {
    case DType::f32:
      return function(TypeTag<float>{});
    case DType::f64:
      return function(TypeTag<double>{});
    case DType::bf16:
      return function(TypeTag<BFloat16>{});
    case DType::f16:
      return function(TypeTag<Float16>{});
    case DType::i32:
      return function(TypeTag<std::int32_t>{});
    case DType::i64:
      return function(TypeTag<std::int64_t>{});
    case DType::i8:
      fail("an array of i8 holds a quantised weight and is only copied or cast; cast it to f32 first");
    case DType::boolean:
      break;
  }
  return function(TypeTag<bool>{});
}

/// The same with i8 among the types: for what stores and copies.
template <class F>
decltype(auto) dispatch_stored_types(DType dtype, F&& function) {
  if (dtype == DType::i8) return function(TypeTag<std::int8_t>{});
  return dispatch(dtype, std::forward<F>(function));
}

/// Bytes of one element.
inline std::size_t size_of(DType dtype) {
  return dispatch_stored_types(dtype, [](auto tag) { return sizeof(typename decltype(tag)::type); });
}

/// "f32", "i64", ...: the name in messages and on the command line.
inline std::string_view name_of(DType dtype) {
  constexpr std::string_view kNames[] = {"f32", "f64", "bf16", "f16", "i32", "i64", "bool", "i8"};
  return kNames[static_cast<int>(dtype)];
}

/// Whether values of this type can carry a gradient.
inline bool is_floating(DType dtype) { return dtype <= DType::f16; }

/// bf16 or f16.
inline bool is_half(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }
/// The type in which elements of this floating type are computed: f32 for the 16-bit formats.
inline DType computing(DType dtype) { return is_half(dtype) ? DType::f32 : dtype; }

/// Calls `function` with the TypeTag of a computing type (f32 or f64); other types are an error that names
/// `op`.
template <class F>
decltype(auto) dispatch_computing(const char* op, DType dtype, F&& function) {
  if (dtype == DType::f64) return function(TypeTag<double>{});
  require(dtype == DType::f32, op, ": wants f32 or f64, got ", name_of(dtype));
  return function(TypeTag<float>{});
}

}  // namespace needle
