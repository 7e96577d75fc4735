// CUDA's handles as values that give back what they hold.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <type_traits>

#include "backends/cuda/launch.h"

namespace needle::cuda {

/// Gives a handle back by the function of its type; what that answers no longer matters.
template <auto kDestroy>
struct Destroy {
  template <class Handle>
  void operator()(Handle* handle) const {
    (void)kDestroy(handle);
  }
};
template <class Handle, auto kDestroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<kDestroy>>;

using Stream = Owned<cudaStream_t, cudaStreamDestroy>;
using Event = Owned<cudaEvent_t, cudaEventDestroy>;
using Blas = Owned<cublasHandle_t, cublasDestroy>;
using Graph = Owned<cudaGraph_t, cudaGraphDestroy>;
using ExecutableGraph = Owned<cudaGraphExec_t, cudaGraphExecDestroy>;

/// A stream that waits for no other.
inline Stream make_stream() {
  cudaStream_t stream = nullptr;
  NEEDLE_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return Stream(stream);
}
inline Event make_event() {
  cudaEvent_t event = nullptr;
  NEEDLE_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return Event(event);
}

/// Host memory that the device copies from and to by itself; `free` comes when it may be used again.
class PinnedBuffer {
 public:
  static constexpr std::size_t kBytes = 4 << 20;
  PinnedBuffer() : free_(make_event()) {
    void* data = nullptr;
    NEEDLE_CUDA_CHECK(cudaMallocHost(&data, kBytes));
    data_.reset(data);
  }
  void* data() const { return data_.get(); }
  cudaEvent_t free() const { return free_.get(); }

 private:
  std::unique_ptr<void, Destroy<cudaFreeHost>> data_;
  Event free_;
};

}  // namespace needle::cuda
