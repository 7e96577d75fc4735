// The only way to launch a kernel.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "backends/error.h"

namespace needle::cuda {

/// Any call may be the one that is told of work that failed before it.
inline constexpr const char* kEarlierWork =
    "; work before it may be what failed, and NEEDLE_CUDA_SYNC=1 names it";

/// A CUDA call that failed.
class Error : public DeviceError {
 public:
  Error(cudaError_t code, const char* what)
      : DeviceError(std::string("cuda: ") + what + ": " + cudaGetErrorName(code) + ": " +
                    cudaGetErrorString(code) + (code >= cudaErrorIllegalAddress ? kEarlierWork : "")),
        code_(code) {}
  cudaError_t code() const { return code_; }

 private:
  cudaError_t code_;
};

inline void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess) {
    (void)cudaGetLastError();  // reported now; must not be found again by the next launch
    throw Error(code, what);
  }
}
inline void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw DeviceError(std::string("cuda: ") + what + ": " + cublasGetStatusString(status) + kEarlierWork);
}
#define NEEDLE_CUDA_CHECK(call) ::needle::cuda::check((call), #call)

struct LaunchConfig {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;  // dynamic shared memory
  cudaStream_t stream = nullptr;
};

inline constexpr std::size_t kDefaultSharedLimit = 48 * 1024;

// Kernels exist only in .cu files; elsewhere (a .cpp file of the nvcc build) launch() is but declared.
#if defined(__CUDACC__) || defined(NEEDLE_CUDA_EMULATED)

namespace detail {
// P{a} is well-formed, that is: no narrowing.  (As a plain expression g++ and nvcc only warn.)
template <class P, class A>
concept InitializableFrom = requires(A&& a) {
  P{static_cast<A&&>(a)};
};
}  // namespace detail

#if defined(NEEDLE_CUDA_EMULATED)
namespace detail {
// Keeps the argument values; runs the kernel for one CUDA thread.
template <class... P>
struct Call final : emu::KernelCall {
  void (*kernel)(P...);
  std::tuple<P...> arguments;

  template <class... A>
  Call(void (*k)(P...), A&&... a) : kernel(k), arguments{P{std::forward<A>(a)}...} {
    function = reinterpret_cast<const void*>(k);
    object_size = sizeof *this;
  }
  void run_thread() const override { std::apply(kernel, arguments); }
};
}  // namespace detail
#endif

// launch(kernel, {grid, block, shared_bytes, stream}, arguments...)
//
// Each argument is brace-initialised into the kernel's parameter type: a narrowing conversion (such
// as int64_t to int) does not compile.  An empty grid is allowed and does nothing.  Throws Error.
template <class... P, class... A>
requires(sizeof...(P) == sizeof...(A)) void launch(void (*kernel)(P...), const LaunchConfig& config,
                                                   A&&... arguments) {
  static_assert((detail::InitializableFrom<P, A> && ...), "a kernel argument needs an explicit conversion");
  static_assert((std::is_trivially_copyable_v<P> && ...), "kernel parameters are copied byte by byte");
  static_assert((!std::is_reference_v<P> && ...), "kernel parameters are passed by value");
  if (config.grid.x == 0 || config.grid.y == 0 || config.grid.z == 0) return;
  if (config.shared_bytes > kDefaultSharedLimit)
    NEEDLE_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(config.shared_bytes)));
#if defined(__CUDACC__)
  kernel<<<config.grid, config.block, config.shared_bytes, config.stream>>>(P{std::forward<A>(arguments)}...);
  check(cudaGetLastError(), "kernel launch");
#else
  check(emu::launch(std::make_unique<detail::Call<P...>>(kernel, std::forward<A>(arguments)...), config.grid,
                    config.block, config.shared_bytes, config.stream),
        "kernel launch");
#endif
}

#else
template <class... P, class... A>
void launch(void (*kernel)(P...), const LaunchConfig& config, A&&... arguments);
#endif

}  // namespace needle::cuda
