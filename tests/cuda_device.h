// The emulated device, and what it is asked to do.
#pragma once

#include <functional>

#include "backends/cuda/cuda_backend.h"
#include "cuda_emu/control.h"
#include "tests/on_devices.h"

namespace needle {

namespace emu = cuda::emu;

inline Device cuda_device() { return device_of("cuda"); }

inline NDArray some(const Shape& shape, DType dtype = DType::f32) {
  Generator random(7);
  return NDArray::random({Distribution::Kind::normal, 0, 1}, shape, random, dtype, cuda_device());
}

/// Kernels and products that `work` takes.
inline std::uint64_t launches_of(const std::function<void()>& work) {
  cuda_device()->synchronize();
  const emu::Stats before = emu::stats();
  work();
  cuda_device()->synchronize();
  const emu::Stats after = emu::stats();
  return after.launches - before.launches + after.products - before.products;
}

}  // namespace needle
