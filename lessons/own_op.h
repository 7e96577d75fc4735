// What lesson 4 computes of one element: written once, for loops and kernels alike.
#pragma once

#include <cstdint>

#include "backends/host_device.h"

/// max(x, 0)^2 (So et al. 2021, "Primer").
struct SquaredRelu {
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return x > T(0) ? x * x : T(0);
  }
};

/// y = max(x, 0)^2 of `count` numbers in the memory of a CUDA device; waits until it is done.
void squared_relu_on_cuda(const float* x, float* y, std::int64_t count);
