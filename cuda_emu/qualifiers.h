// Qualifiers of functions and variables. Included by cuda_runtime.h.
#pragma once

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __grid_constant__
// Shared memory must be declared with NEEDLE_SHARED / NEEDLE_DYNAMIC_SHARED (backends/cuda/device_code.h):
// a raw __shared__ cannot be given per-block storage, red zones or poison by a macro alone.
#define __shared__ static_assert(false, "use NEEDLE_SHARED or NEEDLE_DYNAMIC_SHARED");
#define __constant__ static_assert(false, "needle: pass constants as kernel arguments");
// Not defined on purpose: __noinline__ (it would break libstdc++, which spells GCC attributes so).
