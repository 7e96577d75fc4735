// Elementwise kernels: a thread takes elements of any strides, one after the other.
#include "backends/convert.h"
#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/device_code.h"
#include "backends/defined_ops.h"

namespace needle {

using cuda::grid_index;
using cuda::grid_stride;
using cuda::Stored;

namespace {

template <std::size_t N, class Body>
__global__ void __launch_bounds__(256) elementwise_kernel(MergedAxes<N> axes, Body body) {
  for (std::int64_t i = grid_index(); i < axes.count; i += grid_stride()) {
    body(cuda::offsets_of(axes, i));
  }
}

/// y = x, whose elements are words of the same type.
template <class Word>
struct CopyBody {
  const Word* x;
  Word* y;
  __device__ void operator()(const cuda::Offsets<2>& at) const { y[at[1]] = x[at[0]]; }
};

/// y = x, both computed as T.
template <class T>
struct RoundBody {
  Stored x, y;
  __device__ void operator()(const cuda::Offsets<2>& at) const {
    cuda::store<T>(y, at[1], cuda::load<T>(x, at[0]));
  }
};

/// y = x from one type to any other.
template <class From, class To>
struct ConvertBody {
  const From* x;
  To* y;
  __device__ void operator()(const cuda::Offsets<2>& at) const { y[at[1]] = converted<To>(x[at[0]]); }
};

template <class T>
struct FillBody {
  T value;
  T* y;
  __device__ void operator()(const cuda::Offsets<1>& at) const { y[at[0]] = value; }
};

template <class T>
__global__ void __launch_bounds__(256)
    arange_kernel(double start, double step, T* y, std::int64_t stride, std::int64_t count) {
  for (std::int64_t i = grid_index(); i < count; i += grid_stride())
    y[i * stride] = converted<T>(start + static_cast<double>(i) * step);
}

template <class F, class T>
struct UnaryBody {
  F f;
  Stored x, y;
  __device__ void operator()(const cuda::Offsets<2>& at) const {
    cuda::store<T>(y, at[1], f(cuda::load<T>(x, at[0])));
  }
};

template <class F, class T>
struct BinaryBody {
  F f;
  Stored a, b, y;
  __device__ void operator()(const cuda::Offsets<3>& at) const {
    const T left = cuda::load<T>(a, at[0]), right = cuda::load<T>(b, at[1]);
    if constexpr (is_comparison<F>)
      static_cast<bool*>(y.data)[at[2]] = f(left, right);
    else
      cuda::store<T>(y, at[2], f(left, right));
  }
};

/// y = a / b of whole numbers; a divisor of 0 is told of.
template <class T>
struct QuotientBody {
  const T *a, *b;
  T* y;
  cuda::Failure* failure;
  __device__ void operator()(const cuda::Offsets<3>& at) const {
    const T divisor = b[at[1]];
    if (divisor == T(0)) cuda::keep_first(failure, {cuda::Failure::Kind::zero_divisor, "divide", 0, 0, 0, 0});
    y[at[2]] = divisor == T(0) ? T(0) : quotient(a[at[0]], divisor);
  }
};

template <class Word>
struct SelectBody {
  const bool* condition;
  const Word *a, *b;
  Word* y;
  __device__ void operator()(const cuda::Offsets<4>& at) const {
    y[at[3]] = condition[at[0]] ? a[at[1]] : b[at[2]];
  }
};

}  // namespace

template <std::size_t N, class Body>
void CudaBackend::run_body(const std::array<View, N>& views, const Body& body) {
  const MergedAxes<N> axes(views);
  run_elements(elementwise_kernel<N, Body>, axes.count, axes, body);
}

void CudaBackend::copy(const View& x, const View& y) {
  const std::array views{x, y};
  if (x.dtype == y.dtype) {
    return dispatch_size(x.dtype, [&](auto tag) {
      using Word = typename decltype(tag)::type;
      run_body(views, CopyBody<Word>{x.as<Word>(), y.as<Word>()});
    });
  }
  if (computing(x.dtype) == DType::f32 && computing(y.dtype) == DType::f32)
    return run_body(views, RoundBody<float>{x, y});
  dispatch_stored_types(x.dtype, [&](auto from_tag) {
    using From = typename decltype(from_tag)::type;
    dispatch_stored_types(y.dtype, [&](auto to_tag) {
      using To = typename decltype(to_tag)::type;
      if constexpr (!std::is_same_v<From, To>)
        run_body(views, ConvertBody<From, To>{x.as<From>(), y.as<To>()});
    });
  });
}

void CudaBackend::fill(double value, const View& y) {
  dispatch(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    run_body(std::array{y}, FillBody<T>{converted<T>(value), y.as<T>()});
  });
}

void CudaBackend::arange(double start, double step, const View& y) {
  dispatch(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    run_elements(arange_kernel<T>, y.count(), start, step, y.as<T>(), y.strides[0], y.count());
  });
}

void CudaBackend::unary(const UnaryOp& op, const View& x, const View& y) {
  cuda::dispatch_arithmetic(name_of(op), x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    require_defined<T>(op, x.dtype);
    std::visit(
        [&](auto f) {
          using F = decltype(f);
          if constexpr (is_defined<F, T>()) run_body(std::array{x, y}, UnaryBody<F, T>{f, x, y});
        },
        op);
  });
}

void CudaBackend::binary(const BinaryOp& op, const View& a, const View& b, const View& y) {
  cuda::dispatch_arithmetic(name_of(op), a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    require_defined<T>(op, a.dtype);
    std::visit(
        [&](auto f) {
          using F = decltype(f);
          if constexpr (std::is_same_v<F, Divide> && std::is_integral_v<T> && !std::is_same_v<T, bool>)
            run_body(std::array{a, b, y}, QuotientBody<T>{a.as<T>(), b.as<T>(), y.as<T>(), failure_.get()});
          else if constexpr (is_defined<F, T>())
            run_body(std::array{a, b, y}, BinaryBody<F, T>{f, a, b, y});
        },
        op);
  });
}

void CudaBackend::select(const View& condition, const View& a, const View& b, const View& y) {
  dispatch_size(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    run_body(std::array{condition, a, b, y},
             SelectBody<T>{condition.as<bool>(), a.as<T>(), b.as<T>(), y.as<T>()});
  });
}

}  // namespace needle
