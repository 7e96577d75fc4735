// Compile-time proof that the emulated headers agree with NVIDIA's: this file is compiled in both
// builds, so every line holds for both sets of headers.
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

namespace {

// --- constants -----------------------------------------------------------------------------------
#define NEEDLE_VALUE(name, value) static_assert(static_cast<long long>(name) == (value), #name)
NEEDLE_VALUE(cudaSuccess, 0);
NEEDLE_VALUE(cudaErrorInvalidValue, 1);
NEEDLE_VALUE(cudaErrorMemoryAllocation, 2);
NEEDLE_VALUE(cudaErrorInitializationError, 3);
NEEDLE_VALUE(cudaErrorInvalidConfiguration, 9);
NEEDLE_VALUE(cudaErrorInvalidMemcpyDirection, 21);
NEEDLE_VALUE(cudaErrorInsufficientDriver, 35);
NEEDLE_VALUE(cudaErrorInvalidDeviceFunction, 98);
NEEDLE_VALUE(cudaErrorNoDevice, 100);
NEEDLE_VALUE(cudaErrorInvalidDevice, 101);
NEEDLE_VALUE(cudaErrorInvalidResourceHandle, 400);
NEEDLE_VALUE(cudaErrorNotReady, 600);
NEEDLE_VALUE(cudaErrorIllegalAddress, 700);
NEEDLE_VALUE(cudaErrorAssert, 710);
NEEDLE_VALUE(cudaErrorMisalignedAddress, 716);
NEEDLE_VALUE(cudaErrorLaunchFailure, 719);
NEEDLE_VALUE(cudaErrorNotSupported, 801);
NEEDLE_VALUE(cudaErrorUnknown, 999);
NEEDLE_VALUE(cudaErrorStreamCaptureUnsupported, 900);
NEEDLE_VALUE(cudaErrorStreamCaptureInvalidated, 901);
NEEDLE_VALUE(cudaStreamCaptureModeGlobal, 0);
NEEDLE_VALUE(cudaStreamCaptureStatusActive, 1);
NEEDLE_VALUE(cudaMemcpyHostToHost, 0);
NEEDLE_VALUE(cudaMemcpyHostToDevice, 1);
NEEDLE_VALUE(cudaMemcpyDeviceToHost, 2);
NEEDLE_VALUE(cudaMemcpyDeviceToDevice, 3);
NEEDLE_VALUE(cudaMemcpyDefault, 4);
NEEDLE_VALUE(cudaStreamDefault, 0);
NEEDLE_VALUE(cudaStreamNonBlocking, 1);
NEEDLE_VALUE(cudaEventDefault, 0);
NEEDLE_VALUE(cudaEventDisableTiming, 2);
NEEDLE_VALUE(cudaHostAllocDefault, 0);
NEEDLE_VALUE(cudaDevAttrMaxThreadsPerBlock, 1);
NEEDLE_VALUE(cudaDevAttrMaxSharedMemoryPerBlock, 8);
NEEDLE_VALUE(cudaDevAttrWarpSize, 10);
NEEDLE_VALUE(cudaDevAttrMultiProcessorCount, 16);
NEEDLE_VALUE(cudaDevAttrComputeCapabilityMajor, 75);
NEEDLE_VALUE(cudaDevAttrComputeCapabilityMinor, 76);
NEEDLE_VALUE(cudaDevAttrMaxSharedMemoryPerBlockOptin, 97);
NEEDLE_VALUE(cudaFuncAttributeMaxDynamicSharedMemorySize, 8);
NEEDLE_VALUE(cudaFuncAttributePreferredSharedMemoryCarveout, 9);
NEEDLE_VALUE(CUBLAS_STATUS_SUCCESS, 0);
NEEDLE_VALUE(CUBLAS_STATUS_NOT_INITIALIZED, 1);
NEEDLE_VALUE(CUBLAS_STATUS_ALLOC_FAILED, 3);
NEEDLE_VALUE(CUBLAS_STATUS_INVALID_VALUE, 7);
NEEDLE_VALUE(CUBLAS_STATUS_ARCH_MISMATCH, 8);
NEEDLE_VALUE(CUBLAS_STATUS_EXECUTION_FAILED, 13);
NEEDLE_VALUE(CUBLAS_STATUS_INTERNAL_ERROR, 14);
NEEDLE_VALUE(CUBLAS_STATUS_NOT_SUPPORTED, 15);
NEEDLE_VALUE(CUBLAS_OP_N, 0);
NEEDLE_VALUE(CUBLAS_OP_T, 1);
NEEDLE_VALUE(CUBLAS_OP_C, 2);
NEEDLE_VALUE(CUBLAS_DEFAULT_MATH, 0);
NEEDLE_VALUE(CUBLAS_PEDANTIC_MATH, 2);
NEEDLE_VALUE(CUBLAS_TF32_TENSOR_OP_MATH, 3);
NEEDLE_VALUE(CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION, 16);
NEEDLE_VALUE(CUBLAS_COMPUTE_32F, 68);
NEEDLE_VALUE(CUBLAS_COMPUTE_32F_PEDANTIC, 69);
NEEDLE_VALUE(CUBLAS_COMPUTE_32F_FAST_TF32, 77);
NEEDLE_VALUE(CUBLAS_GEMM_DEFAULT, -1);
NEEDLE_VALUE(CUDA_R_32F, 0);
NEEDLE_VALUE(CUDA_R_16F, 2);
NEEDLE_VALUE(CUDA_R_16BF, 14);

// --- layouts -------------------------------------------------------------------------------------
#define NEEDLE_LAYOUT(type, size, align) \
  static_assert(sizeof(type) == (size) && alignof(type) == (align), #type)
NEEDLE_LAYOUT(float2, 8, 8);
NEEDLE_LAYOUT(float4, 16, 16);
NEEDLE_LAYOUT(int2, 8, 8);
NEEDLE_LAYOUT(int4, 16, 16);
NEEDLE_LAYOUT(uint2, 8, 8);
NEEDLE_LAYOUT(uint4, 16, 16);
NEEDLE_LAYOUT(double2, 16, 16);
NEEDLE_LAYOUT(uint3, 12, 4);
NEEDLE_LAYOUT(dim3, 12, 4);
NEEDLE_LAYOUT(__nv_bfloat16, 2, 2);
NEEDLE_LAYOUT(__half, 2, 2);

// --- signatures ----------------------------------------------------------------------------------
#define NEEDLE_SIGNATURE(name, ...) static_assert(std::is_same_v<decltype(name), __VA_ARGS__>, #name)
using std::size_t;
NEEDLE_SIGNATURE(cudaGetErrorString, const char*(cudaError_t));
NEEDLE_SIGNATURE(cudaGetErrorName, const char*(cudaError_t));
NEEDLE_SIGNATURE(cudaGetLastError, cudaError_t());
NEEDLE_SIGNATURE(cudaPeekAtLastError, cudaError_t());
NEEDLE_SIGNATURE(cudaGetDeviceCount, cudaError_t(int*));
NEEDLE_SIGNATURE(cudaGetDevice, cudaError_t(int*));
NEEDLE_SIGNATURE(cudaSetDevice, cudaError_t(int));
NEEDLE_SIGNATURE(cudaDeviceSynchronize, cudaError_t());
NEEDLE_SIGNATURE(cudaDeviceReset, cudaError_t());
NEEDLE_SIGNATURE(cudaGetDeviceProperties, cudaError_t(cudaDeviceProp*, int));
NEEDLE_SIGNATURE(cudaDeviceGetAttribute, cudaError_t(int*, cudaDeviceAttr, int));
NEEDLE_SIGNATURE(cudaFree, cudaError_t(void*));
NEEDLE_SIGNATURE(cudaFreeAsync, cudaError_t(void*, cudaStream_t));
NEEDLE_SIGNATURE(cudaFreeHost, cudaError_t(void*));
NEEDLE_SIGNATURE(cudaMemGetInfo, cudaError_t(size_t*, size_t*));
NEEDLE_SIGNATURE(cudaMemcpy, cudaError_t(void*, const void*, size_t, cudaMemcpyKind));
NEEDLE_SIGNATURE(cudaMemcpyAsync, cudaError_t(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t));
NEEDLE_SIGNATURE(cudaMemcpy2DAsync, cudaError_t(void*, size_t, const void*, size_t, size_t, size_t,
                                                cudaMemcpyKind, cudaStream_t));
NEEDLE_SIGNATURE(cudaMemset, cudaError_t(void*, int, size_t));
NEEDLE_SIGNATURE(cudaMemsetAsync, cudaError_t(void*, int, size_t, cudaStream_t));
NEEDLE_SIGNATURE(cudaStreamCreate, cudaError_t(cudaStream_t*));
NEEDLE_SIGNATURE(cudaStreamCreateWithFlags, cudaError_t(cudaStream_t*, unsigned));
NEEDLE_SIGNATURE(cudaStreamDestroy, cudaError_t(cudaStream_t));
NEEDLE_SIGNATURE(cudaStreamSynchronize, cudaError_t(cudaStream_t));
NEEDLE_SIGNATURE(cudaStreamQuery, cudaError_t(cudaStream_t));
NEEDLE_SIGNATURE(cudaStreamWaitEvent, cudaError_t(cudaStream_t, cudaEvent_t, unsigned));
NEEDLE_SIGNATURE(cudaLaunchHostFunc, cudaError_t(cudaStream_t, cudaHostFn_t, void*));
NEEDLE_SIGNATURE(cudaEventCreateWithFlags, cudaError_t(cudaEvent_t*, unsigned));
NEEDLE_SIGNATURE(cudaEventDestroy, cudaError_t(cudaEvent_t));
NEEDLE_SIGNATURE(cudaEventRecord, cudaError_t(cudaEvent_t, cudaStream_t));
NEEDLE_SIGNATURE(cudaEventSynchronize, cudaError_t(cudaEvent_t));
NEEDLE_SIGNATURE(cudaEventQuery, cudaError_t(cudaEvent_t));
NEEDLE_SIGNATURE(cudaEventElapsedTime, cudaError_t(float*, cudaEvent_t, cudaEvent_t));
NEEDLE_SIGNATURE(cudaStreamBeginCapture, cudaError_t(cudaStream_t, cudaStreamCaptureMode));
NEEDLE_SIGNATURE(cudaStreamEndCapture, cudaError_t(cudaStream_t, cudaGraph_t*));
NEEDLE_SIGNATURE(cudaStreamIsCapturing, cudaError_t(cudaStream_t, cudaStreamCaptureStatus*));
NEEDLE_SIGNATURE(cudaGraphLaunch, cudaError_t(cudaGraphExec_t, cudaStream_t));
NEEDLE_SIGNATURE(cudaGraphDestroy, cudaError_t(cudaGraph_t));
NEEDLE_SIGNATURE(cudaGraphExecDestroy, cudaError_t(cudaGraphExec_t));
NEEDLE_SIGNATURE(cublasCreate, cublasStatus_t(cublasHandle_t*));
NEEDLE_SIGNATURE(cublasDestroy, cublasStatus_t(cublasHandle_t));
NEEDLE_SIGNATURE(cublasSetStream, cublasStatus_t(cublasHandle_t, cudaStream_t));
NEEDLE_SIGNATURE(cublasSetWorkspace, cublasStatus_t(cublasHandle_t, void*, size_t));
NEEDLE_SIGNATURE(cublasSetMathMode, cublasStatus_t(cublasHandle_t, cublasMath_t));
NEEDLE_SIGNATURE(cublasSgemm, cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int,
                                             int, const float*, const float*, int, const float*, int,
                                             const float*, float*, int));
NEEDLE_SIGNATURE(cublasSgemmStridedBatched,
                 cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                                const float*, const float*, int, long long, const float*, int, long long,
                                const float*, float*, int, long long, int));

}  // namespace
