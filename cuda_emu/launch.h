// Launching a kernel: for backends/cuda/launch.h alone. Included by cuda_runtime.h.
#pragma once

#include <memory>

#include "cuda_emu/runtime_api.h"

namespace needle::cuda::emu {
// One kernel launch with its argument values, already converted to the parameter types.
struct KernelCall {
  virtual ~KernelCall() = default;
  virtual void run_thread() const = 0;  // the body of one CUDA thread
  const void* function = nullptr;       // address of the kernel, for attributes and reports
  std::size_t object_size = 0;          // the kernel may read its parameters in here
};
cudaError_t launch(std::unique_ptr<KernelCall> call, dim3 grid, dim3 block, std::size_t shared_bytes,
                   cudaStream_t stream);
}  // namespace needle::cuda::emu
