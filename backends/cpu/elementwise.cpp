// Elementwise kernels.
#include <cmath>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/loops.h"
#include "backends/cpu/staging.h"
#include "backends/defined_ops.h"

namespace needle {

namespace {

/// dispatch() over the types that are computed in; the 16-bit formats count as float.
template <class F>
void dispatch_wide(DType dtype, const F& function) {
  dispatch(dtype, [&](auto tag) { function(TypeTag<Arithmetic<typename decltype(tag)::type>>{}); });
}

template <class T>
void unary_run(const UnaryOp& op, const T* x, T* y, std::int64_t count) {
  std::visit(
      [&](auto f) {
        if constexpr (is_defined<decltype(f), T>()) {
#pragma omp simd
          for (std::int64_t i = 0; i < count; ++i) y[i] = f(x[i]);
        }
      },
      op);
}

/// One run of a binary functor; those with results of another type than Y do nothing.
template <class T, class Y>
void binary_run(const BinaryOp& op, const T* a, const T* b, Y* y, std::int64_t count) {
  std::visit(
      [&](auto f) {
        using F = decltype(f);
        if constexpr (is_defined<F, T>() && is_comparison<F> == std::is_same_v<Y, bool>) {
          if constexpr (std::is_integral_v<T> && std::is_same_v<F, Divide>) {
            for (std::int64_t i = 0; i < count; ++i) y[i] = quotient(a[i], b[i]);
          } else {
#pragma omp simd
            for (std::int64_t i = 0; i < count; ++i) y[i] = f(a[i], b[i]);
          }
        }
      },
      op);
}

template <class T, class Y>
void binary_typed(const BinaryOp& op, const View& a, const View& b, const View& y) {
  using Loop = StridedLoop<3>;
  const Loop loop({a, b, y});
  const auto strides = loop.run_strides();
  loop.run([&](const auto& offsets, std::int64_t count) {
    T left[Loop::kLongest], right[Loop::kLongest];
    Y result[Loop::kLongest];
    binary_run(op, read_run(a, offsets[0], strides[0], count, left),
               read_run(b, offsets[1], strides[1], count, right),
               run_target(y, offsets[2], strides[2], result), count);
    write_run(y, offsets[2], strides[2], count, result);
  });
}

/// Whole numbers have no infinity to answer a division by zero with.
template <class T>
void require_no_zero(const View& b) {
  using Loop = StridedLoop<1>;
  const Loop loop({b});
  bool zero = false;
  loop.run([&](const auto& offsets, std::int64_t count) {
    T buffer[Loop::kLongest];
    const T* divisors = read_run(b, offsets[0], loop.run_strides()[0], count, buffer);
    if (std::find(divisors, divisors + count, T(0)) != divisors + count) {
#pragma omp atomic write
      zero = true;
    }
  });
  require(!zero, "divide: a whole number is divided by zero");
}

}  // namespace

void CpuBackend::copy(const View& x, const View& y) {
  const StridedLoop<2> loop({x, y});
  const auto strides = loop.run_strides();
  if (x.dtype == y.dtype) {
    return dispatch_size(x.dtype, [&](auto tag) {
      using Word = typename decltype(tag)::type;
      loop.run([&](const auto& offsets, std::int64_t count) {
        copy_run(x.as<Word>() + offsets[0], strides[0], y.as<Word>() + offsets[1], strides[1], count);
      });
    });
  }
  loop.run([&](const auto& offsets, std::int64_t count) {
    dispatch_stored_types(x.dtype, [&](auto from_tag) {
      using From = typename decltype(from_tag)::type;
      dispatch_stored_types(y.dtype, [&](auto to_tag) {
        using To = typename decltype(to_tag)::type;
        if constexpr (!std::is_same_v<From, To>) {
          copy_run(x.as<From>() + offsets[0], strides[0], y.as<To>() + offsets[1], strides[1], count);
        }
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
      copy_run(&element, 0, y.as<T>() + offsets[0], loop.run_strides()[0], count);
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
  dispatch_wide(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    require_defined<T>(op, x.dtype);
    using Loop = StridedLoop<2>;
    const Loop loop({x, y});
    const auto strides = loop.run_strides();
    loop.run([&](const auto& offsets, std::int64_t count) {
      T from[Loop::kLongest], to[Loop::kLongest];
      unary_run(op, read_run(x, offsets[0], strides[0], count, from),
                run_target(y, offsets[1], strides[1], to), count);
      write_run(y, offsets[1], strides[1], count, to);
    });
  });
}

void CpuBackend::binary(const BinaryOp& op, const View& a, const View& b, const View& y) {
  dispatch_wide(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    require_defined<T>(op, a.dtype);
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      if (std::holds_alternative<Divide>(op)) require_no_zero<T>(b);
    }
    if (compares(op))
      binary_typed<T, bool>(op, a, b, y);
    else
      binary_typed<T, T>(op, a, b, y);
  });
}

void CpuBackend::select(const View& condition, const View& a, const View& b, const View& y) {
  dispatch_size(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const StridedLoop<4> loop({condition, a, b, y});
    const auto strides = loop.run_strides();
    loop.run([&](const auto& offsets, std::int64_t count) {
      const bool* chosen = condition.as<bool>() + offsets[0];
      const T *left = a.as<T>() + offsets[1], *right = b.as<T>() + offsets[2];
      T* to = y.as<T>() + offsets[3];
      if (strides == std::array<std::int64_t, 4>{1, 1, 1, 1}) {
#pragma omp simd
        for (std::int64_t i = 0; i < count; ++i) to[i] = chosen[i] ? left[i] : right[i];
      } else {
        for (std::int64_t i = 0; i < count; ++i) {
          to[i * strides[3]] = chosen[i * strides[0]] ? left[i * strides[1]] : right[i * strides[2]];
        }
      }
    });
  });
}

}  // namespace needle
