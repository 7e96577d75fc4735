// Emulated <cuda_runtime.h>: the subset of it that the CUDA backend may use. It is found only where
// NEEDLE_CUDA=EMULATED: .cu files are then compiled as ordinary C++20, and the functions declared here run
// the kernels on the CPU. nvcc finds NVIDIA's header of this name instead, and nothing of cuda_emu/.
//
// To extend it: a declaration comes together with its line in tests/cuda/api_check.cu (signature and values
// as NVIDIA's) and a test in tests/cuda/intrinsics_test.cpp (behaviour as on a GPU). What is missing does not
// compile, which is better than what is almost right.
#pragma once

#define NEEDLE_CUDA_EMULATED 1

#include "cuda_emu/device_builtins.h"
#include "cuda_emu/launch.h"
#include "cuda_emu/qualifiers.h"
#include "cuda_emu/runtime_api.h"
#include "cuda_emu/vector_types.h"
