// Elementwise kernels.
#include <cmath>
#include <cstring>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/loops.h"
#include "backends/cpu/scratch.h"

namespace needle {

namespace {

/// x as a To; out-of-range numbers and NaN become the nearest whole number there is, or 0.
template <class To, class From>
To converted(From x) {
  using Source = Arithmetic<From>;
  const Source value = static_cast<Source>(x);
  if constexpr (std::is_same_v<To, bool>) {
    return value != Source(0);
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<Source>) {
    if (!(value == value)) return 0;
    constexpr Source kLimit = static_cast<Source>(std::numeric_limits<To>::max());
    if (value >= kLimit) return std::numeric_limits<To>::max();
    if (value <= -kLimit) return std::numeric_limits<To>::lowest();
    return static_cast<To>(value);
  } else {
    return static_cast<To>(static_cast<Arithmetic<To>>(value));
  }
}

/// Whether a functor makes sense on whole numbers of type T.
template <class F, class T>
inline constexpr bool works_on_integers =
    !std::is_same_v<T, bool> &&
    (std::is_same_v<F, Negate> || std::is_same_v<F, Abs> || std::is_same_v<F, Sign> ||
     std::is_same_v<F, AddScalar> || std::is_same_v<F, MultiplyScalar> || std::is_same_v<F, Add> ||
     std::is_same_v<F, Subtract> || std::is_same_v<F, Multiply> || std::is_same_v<F, Divide> ||
     std::is_same_v<F, Maximum> || std::is_same_v<F, Minimum>);

/// The 16-bit formats are storage: they are widened to float32 and rounded again.
bool is_half(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }

/// dispatch() over the types that are computed in.
template <class F>
void dispatch_wide(DType dtype, const F& function) {
  switch (dtype) {
    case DType::f64:
      return function(TypeTag<double>{});
    case DType::i32:
      return function(TypeTag<std::int32_t>{});
    case DType::i64:
      return function(TypeTag<std::int64_t>{});
    case DType::boolean:
      return function(TypeTag<bool>{});
    default:
      return function(TypeTag<float>{});
  }
}

std::size_t count_of(const View& x) { return static_cast<std::size_t>(x.count()); }
View compact_view(const Scratch<float>& memory, const Shape& shape) {
  return {memory.data(), DType::f32, shape, compact_strides(shape)};
}

template <class T, class F>
void unary_typed(F f, const View& x, const View& y) {
  const StridedLoop<2> loop({x, y});
  const bool contiguous = loop.contiguous();
  const auto strides = loop.inner_strides;
  loop.run([&](const auto& offsets, std::int64_t count) {
    const T* from = x.as<T>() + offsets[0];
    T* to = y.as<T>() + offsets[1];
    if (contiguous) {
#pragma omp simd
      for (std::int64_t i = 0; i < count; ++i) to[i] = f(from[i]);
    } else {
      for (std::int64_t i = 0; i < count; ++i) to[i * strides[1]] = f(from[i * strides[0]]);
    }
  });
}

template <class T, class Y, class F>
void binary_typed(F f, const View& a, const View& b, const View& y) {
  const StridedLoop<3> loop({a, b, y});
  const bool contiguous = loop.contiguous();
  const auto strides = loop.inner_strides;
  const bool b_constant = strides[0] == 1 && strides[1] == 0 && strides[2] == 1;
  loop.run([&](const auto& offsets, std::int64_t count) {
    const T *left = a.as<T>() + offsets[0], *right = b.as<T>() + offsets[1];
    Y* to = y.as<Y>() + offsets[2];
    if (contiguous) {
#pragma omp simd
      for (std::int64_t i = 0; i < count; ++i) to[i] = f(left[i], right[i]);
    } else if (b_constant) {
      const T constant = right[0];
#pragma omp simd
      for (std::int64_t i = 0; i < count; ++i) to[i] = f(left[i], constant);
    } else {
      for (std::int64_t i = 0; i < count; ++i) {
        to[i * strides[2]] = f(left[i * strides[0]], right[i * strides[1]]);
      }
    }
  });
}

/// Whole numbers have no infinity to answer a division by zero with.
template <class T>
void require_no_zero(const View& b) {
  const StridedLoop<1> loop({b});
  bool zero = false;
  loop.run([&](const auto& offsets, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (b.as<T>()[offsets[0] + i * loop.inner_strides[0]] == 0) {
#pragma omp atomic write
        zero = true;
      }
    }
  });
  require(!zero, "divide: a whole number is divided by zero");
}

}  // namespace

void CpuBackend::copy(const View& x, const View& y) {
  const StridedLoop<2> loop({x, y});
  const bool contiguous = loop.contiguous();
  const auto strides = loop.inner_strides;
  if (x.dtype == y.dtype) {
    // The bits are copied as they are, so only the size of an element matters.
    const auto same = [&](auto word) {
      using T = decltype(word);
      loop.run([&](const auto& offsets, std::int64_t count) {
        const T* from = x.as<T>() + offsets[0];
        T* to = y.as<T>() + offsets[1];
        if (contiguous)
          std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(T));
        else if (strides[1] == 1 && strides[0] == 0)
          std::fill_n(to, count, from[0]);
        else
          for (std::int64_t i = 0; i < count; ++i) to[i * strides[1]] = from[i * strides[0]];
      });
    };
    switch (size_of(x.dtype)) {
      case 1:
        return same(std::uint8_t{});
      case 2:
        return same(std::uint16_t{});
      case 4:
        return same(std::uint32_t{});
      default:
        return same(std::uint64_t{});
    }
  }
  dispatch(x.dtype, [&](auto from_tag) {
    using From = typename decltype(from_tag)::type;
    dispatch(y.dtype, [&](auto to_tag) {
      using To = typename decltype(to_tag)::type;
      loop.run([&](const auto& offsets, std::int64_t count) {
        const From* from = x.as<From>() + offsets[0];
        To* to = y.as<To>() + offsets[1];
        for (std::int64_t i = 0; i < count; ++i) to[i * strides[1]] = converted<To>(from[i * strides[0]]);
      });
    });
  });
}

void CpuBackend::fill(double value, const View& y) {
  dispatch(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T element = converted<T>(value);
    const StridedLoop<1> loop({y});
    loop.run([&](const auto& offsets, std::int64_t count) {
      T* to = y.as<T>() + offsets[0];
      if (loop.inner_strides[0] == 1)
        std::fill_n(to, count, element);
      else
        for (std::int64_t i = 0; i < count; ++i) to[i * loop.inner_strides[0]] = element;
    });
  });
}

void CpuBackend::arange(double start, double step, const View& y) {
  dispatch(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (std::int64_t i = 0; i < y.shape[0]; ++i) {
      y.as<T>()[i * y.strides[0]] = converted<T>(start + static_cast<double>(i) * step);
    }
  });
}

void CpuBackend::unary(const UnaryOp& op, const View& x, const View& y) {
  if (is_half(x.dtype)) {
    const Scratch<float> from(pool_, count_of(x)), to(pool_, count_of(x));
    const View wide_x = compact_view(from, x.shape), wide_y = compact_view(to, x.shape);
    copy(x, wide_x);
    unary(op, wide_x, wide_y);
    return copy(wide_y, y);
  }
  std::visit(
      [&](auto f) {
        dispatch_wide(x.dtype, [&](auto tag) {
          using T = typename decltype(tag)::type;
          if constexpr (std::is_floating_point_v<T> || works_on_integers<decltype(f), T>)
            unary_typed<T>(f, x, y);
          else
            fail("elementwise: this function is not defined for ", name_of(x.dtype));
        });
      },
      op);
}

void CpuBackend::binary(const BinaryOp& op, const View& a, const View& b, const View& y) {
  if (is_half(a.dtype)) {
    const Scratch<float> left(pool_, count_of(y)), right(pool_, count_of(y));
    const View wide_a = compact_view(left, y.shape), wide_b = compact_view(right, y.shape);
    copy(a, wide_a);
    copy(b, wide_b);
    if (compares(op)) return binary(op, wide_a, wide_b, y);
    binary(op, wide_a, wide_b, wide_a);
    return copy(wide_a, y);
  }
  std::visit(
      [&](auto f) {
        using F = decltype(f);
        dispatch_wide(a.dtype, [&](auto tag) {
          using T = typename decltype(tag)::type;
          if constexpr (is_comparison<F>) {
            binary_typed<T, bool>(f, a, b, y);
          } else if constexpr (std::is_floating_point_v<T> || works_on_integers<F, T>) {
            if constexpr (std::is_integral_v<T> && std::is_same_v<F, Divide>) require_no_zero<T>(b);
            binary_typed<T, T>(f, a, b, y);
          } else {
            fail("elementwise: this function is not defined for ", name_of(a.dtype));
          }
        });
      },
      op);
}

void CpuBackend::select(const View& condition, const View& a, const View& b, const View& y) {
  const auto typed = [&](auto word) {
    using T = decltype(word);
    const StridedLoop<4> loop({condition, a, b, y});
    const auto strides = loop.inner_strides;
    loop.run([&](const auto& offsets, std::int64_t count) {
      const bool* chosen = condition.as<bool>() + offsets[0];
      const T *left = a.as<T>() + offsets[1], *right = b.as<T>() + offsets[2];
      T* to = y.as<T>() + offsets[3];
      for (std::int64_t i = 0; i < count; ++i) {
        to[i * strides[3]] = chosen[i * strides[0]] ? left[i * strides[1]] : right[i * strides[2]];
      }
    });
  };
  switch (size_of(a.dtype)) {
    case 1:
      return typed(std::uint8_t{});
    case 2:
      return typed(std::uint16_t{});
    case 4:
      return typed(std::uint32_t{});
    default:
      return typed(std::uint64_t{});
  }
}

}  // namespace needle
