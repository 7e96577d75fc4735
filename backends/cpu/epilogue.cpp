// What follows a linear map: bias and activation in one pass, and their gradient in another.
#include <algorithm>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/loops.h"
#include "backends/cpu/scratch.h"

namespace needle {

namespace {

/// Copies, with the slope of a copy.
struct Identity {
  template <class T>
  T operator()(T x) const {
    return x;
  }
};
struct IdentityGradient {
  template <class T>
  T operator()(T, T g) const {
    return g;
  }
};

/// function(value functor, gradient functor).
template <class Function>
void dispatch_epilogue(Epilogue epilogue, const Function& function) {
  switch (epilogue) {
    case Epilogue::none:
      return function(Identity{}, IdentityGradient{});
    case Epilogue::relu:
      return function(Relu{}, ReluGradient{});
    case Epilogue::gelu:
      return function(Gelu{}, GeluGradient{});
    case Epilogue::gelu_tanh:
      return function(GeluTanh{}, GeluTanhGradient{});
  }
}

}  // namespace

void CpuBackend::bias_activation(Epilogue epilogue, const View& bias, const View& y, const View& slope) {
  dispatch_computing("linear", y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::int64_t rows = y.shape[0], width = y.shape[1];
    const Scratch<T> zeros(pool_, static_cast<std::size_t>(bias.data ? 0 : width));
    if (!bias.data) std::fill_n(zeros.data(), width, T(0));
    const T* shift = bias.data ? bias.as<T>() : zeros.data();
    dispatch_epilogue(epilogue, [&](auto value, auto gradient) {
#pragma omp parallel for schedule(static) if (y.count() >= kParallelElements)
      for (std::int64_t row = 0; row < rows; ++row) {
        T* const to = y.as<T>() + row * width;
        if (!slope.data) {
#pragma omp simd
          for (std::int64_t i = 0; i < width; ++i) to[i] = value(to[i] + shift[i]);
          continue;
        }
        T* const slopes = slope.as<T>() + row * width;
#pragma omp simd
        for (std::int64_t i = 0; i < width; ++i) {
          const T x = to[i] + shift[i];
          to[i] = value(x);
          slopes[i] = gradient(x, T(1));
        }
      }
    });
  });
}

void CpuBackend::bias_activation_gradient(const View& slope, const View& g, const View& dbias) {
  dispatch_computing("linear", g.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::int64_t rows = g.shape[0], width = g.shape[1];
    // The bias's gradient is summed over fixed pieces of rows, then over the pieces in order.
    constexpr std::int64_t kRows = 64;
    const std::int64_t pieces = (rows + kRows - 1) / kRows;
    const Scratch<T> sums(pool_, static_cast<std::size_t>(pieces * width));
#pragma omp parallel for schedule(static) if (g.count() >= kParallelElements)
    for (std::int64_t piece = 0; piece < pieces; ++piece) {
      T* const sum = sums.data() + piece * width;
      std::fill_n(sum, width, T(0));
      for (std::int64_t row = piece * kRows; row < std::min(rows, (piece + 1) * kRows); ++row) {
        T* const gradient = g.as<T>() + row * width;
        if (slope.data) {
          const T* const slopes = slope.as<T>() + row * width;
#pragma omp simd
          for (std::int64_t i = 0; i < width; ++i) {
            gradient[i] *= slopes[i];
            sum[i] += gradient[i];
          }
        } else {
#pragma omp simd
          for (std::int64_t i = 0; i < width; ++i) sum[i] += gradient[i];
        }
      }
    }
    for (std::int64_t piece = 0; piece < pieces && dbias.data; ++piece) {
      const T* const sum = sums.data() + piece * width;
#pragma omp simd
      for (std::int64_t i = 0; i < width; ++i) dbias.as<T>()[i] += sum[i];
    }
  });
}

}  // namespace needle
