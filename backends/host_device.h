// The one macro that lets a function run on the host and inside a CUDA kernel.
#pragma once

#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif
