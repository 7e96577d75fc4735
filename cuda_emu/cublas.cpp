// cuBLAS on CBLAS.  Both are column-major, so GEMM arguments pass straight through.
#include <cblas.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "cuda_emu/internal.h"

struct cublasContext {
  cudaStream_t stream = nullptr;
};

namespace needle::cuda::emu {
namespace {

std::unordered_map<const cublasContext*, std::unique_ptr<cublasContext>> handles;

struct Matrix {
  const void* data;
  cudaDataType type;
  int rows, cols, ld;  // as stored (column-major)
  long long stride;
  std::size_t element() const { return type == CUDA_R_32F ? 4 : 2; }
};

// Checks that every column of every matrix of the batch is live, and written where it is read.
bool check_matrix(const char* name, const Matrix& m, int batch, bool is_read) {
  std::string why;
  for (int b = 0; b < batch; ++b) {
    for (int c = 0; c < m.cols; ++c) {
      const char* p = static_cast<const char*>(m.data) +
                      m.element() * static_cast<std::size_t>(b * m.stride + static_cast<long long>(c) * m.ld);
      const std::size_t bytes = m.element() * static_cast<std::size_t>(m.rows);
      if (!range_is_live(p, bytes, &why)) {
        report(Violation::out_of_bounds,
               format("cuBLAS GEMM, matrix %s, batch %d, column %d: %s", name, b, c, why.c_str()));
        fail_sticky(cudaErrorIllegalAddress);
        return false;
      }
      if (!is_read) continue;
      const std::size_t bad = shadow_first_uninitialized(p, bytes);
      if (bad < bytes) {
        report(Violation::uninitialized,
               format("cuBLAS GEMM, matrix %s, batch %d, column %d: %s was never written", name, b, c,
                      describe_address(p + bad).c_str()));
        fail_sticky(cudaErrorLaunchFailure);
        return false;
      }
    }
    if (m.stride == 0) break;
  }
  return true;
}

float load(const void* p, cudaDataType t, std::size_t i) {
  if (t == CUDA_R_16F) return __half2float(static_cast<const __half*>(p)[i]);
  if (t == CUDA_R_16BF) return __bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]);
  return static_cast<const float*>(p)[i];
}
void store(void* p, cudaDataType t, std::size_t i, float v) {
  if (t == CUDA_R_16F)
    static_cast<__half*>(p)[i] = __float2half(v);
  else if (t == CUDA_R_16BF)
    static_cast<__nv_bfloat16*>(p)[i] = __float2bfloat16(v);
  else
    static_cast<float*>(p)[i] = v;
}

std::vector<float> gather(const Matrix& m, int batch) {
  std::vector<float> out(static_cast<std::size_t>(m.rows) * static_cast<std::size_t>(m.cols));
  for (int c = 0; c < m.cols; ++c)
    for (int r = 0; r < m.rows; ++r)
      out[static_cast<std::size_t>(c) * static_cast<std::size_t>(m.rows) + static_cast<std::size_t>(r)] =
          load(m.data, m.type,
               static_cast<std::size_t>(batch * m.stride + static_cast<long long>(c) * m.ld + r));
  return out;
}

cublasStatus_t gemm(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
                    float alpha, Matrix a, Matrix b, float beta, Matrix c, int batch) {
  std::lock_guard lock(mutex());
  if (!handles.contains(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (m < 0 || n < 0 || k < 0 || batch < 0) return CUBLAS_STATUS_INVALID_VALUE;
  a.rows = ta == CUBLAS_OP_N ? m : k, a.cols = ta == CUBLAS_OP_N ? k : m;
  b.rows = tb == CUBLAS_OP_N ? k : n, b.cols = tb == CUBLAS_OP_N ? n : k;
  c.rows = m, c.cols = n;
  if (a.ld < std::max(1, a.rows) || b.ld < std::max(1, b.rows) || c.ld < std::max(1, m)) {
    report(Violation::api_misuse,
           format("cuBLAS GEMM: leading dimension too small (lda %d, ldb %d, ldc %d)", a.ld, b.ld, c.ld));
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (m == 0 || n == 0 || batch == 0) return CUBLAS_STATUS_SUCCESS;
  ++totals.products;
  auto run = [=] {
    if (!check_matrix("A", a, batch, true) || !check_matrix("B", b, batch, true) ||
        !check_matrix("C", c, batch, beta != 0))
      return;
    for (int i = 0; i < batch; ++i) {
      const auto op_a = ta == CUBLAS_OP_N ? CblasNoTrans : CblasTrans,
                 op_b = tb == CUBLAS_OP_N ? CblasNoTrans : CblasTrans;
      if (a.type == CUDA_R_32F && b.type == CUDA_R_32F && c.type == CUDA_R_32F) {
        cblas_sgemm(CblasColMajor, op_a, op_b, m, n, k, alpha,
                    static_cast<const float*>(a.data) + i * a.stride, a.ld,
                    static_cast<const float*>(b.data) + i * b.stride, b.ld, beta,
                    static_cast<float*>(const_cast<void*>(c.data)) + i * c.stride, c.ld);
      } else {  // 16-bit storage: convert, multiply in float, round once
        const std::vector<float> fa = gather(a, i), fb = gather(b, i);
        std::vector<float> fc =
            beta != 0 ? gather(c, i)
                      : std::vector<float>(static_cast<std::size_t>(m) * static_cast<std::size_t>(n));
        cblas_sgemm(CblasColMajor, op_a, op_b, m, n, k, alpha, fa.data(), a.rows, fb.data(), b.rows, beta,
                    fc.data(), m);
        for (int col = 0; col < n; ++col)
          for (int row = 0; row < m; ++row)
            store(const_cast<void*>(c.data), c.type,
                  static_cast<std::size_t>(i * c.stride + static_cast<long long>(col) * c.ld + row),
                  fc[static_cast<std::size_t>(col) * static_cast<std::size_t>(m) +
                     static_cast<std::size_t>(row)]);
      }
      for (int col = 0; col < n; ++col)
        shadow_mark_written(
            const_cast<char*>(static_cast<const char*>(c.data)) +
                c.element() * static_cast<std::size_t>(i * c.stride + static_cast<long long>(col) * c.ld),
            c.element() * static_cast<std::size_t>(m));
    }
  };
  return enqueue(handle->stream, run) == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace
}  // namespace needle::cuda::emu

using namespace needle::cuda::emu;

extern "C" {
cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  std::lock_guard lock(mutex());
  auto made = std::make_unique<cublasContext>();
  *handle = made.get();
  handles.emplace(*handle, std::move(made));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  std::lock_guard lock(mutex());
  if (handles.erase(handle) == 0) return CUBLAS_STATUS_NOT_INITIALIZED;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  return handle->stream = stream, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace(cublasHandle_t, void* workspace, size_t bytes) {
  if (workspace != nullptr && !is_device_pointer(workspace)) return CUBLAS_STATUS_INVALID_VALUE;
  return bytes == 0 || workspace != nullptr ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }
const char* cublasGetStatusString(cublasStatus_t s) {
  switch (s) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "unknown cuBLAS status";
}
cublasStatus_t cublasSgemm(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
                           const float* alpha, const float* A, int lda, const float* B, int ldb,
                           const float* beta, float* C, int ldc) {
  return gemm(h, ta, tb, m, n, k, *alpha, {A, CUDA_R_32F, 0, 0, lda, 0}, {B, CUDA_R_32F, 0, 0, ldb, 0}, *beta,
              {C, CUDA_R_32F, 0, 0, ldc, 0}, 1);
}
cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m,
                                         int n, int k, const float* alpha, const float* A, int lda,
                                         long long sa, const float* B, int ldb, long long sb,
                                         const float* beta, float* C, int ldc, long long sc, int batch) {
  return gemm(h, ta, tb, m, n, k, *alpha, {A, CUDA_R_32F, 0, 0, lda, sa}, {B, CUDA_R_32F, 0, 0, ldb, sb},
              *beta, {C, CUDA_R_32F, 0, 0, ldc, sc}, batch);
}
cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
                            const void* alpha, const void* A, cudaDataType at, int lda, const void* B,
                            cudaDataType bt, int ldb, const void* beta, void* C, cudaDataType ct, int ldc,
                            cublasComputeType_t, cublasGemmAlgo_t) {
  return gemm(h, ta, tb, m, n, k, *static_cast<const float*>(alpha), {A, at, 0, 0, lda, 0},
              {B, bt, 0, 0, ldb, 0}, *static_cast<const float*>(beta), {C, ct, 0, 0, ldc, 0}, 1);
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m,
                                          int n, int k, const void* alpha, const void* A, cudaDataType at,
                                          int lda, long long sa, const void* B, cudaDataType bt, int ldb,
                                          long long sb, const void* beta, void* C, cudaDataType ct, int ldc,
                                          long long sc, int batch, cublasComputeType_t, cublasGemmAlgo_t) {
  return gemm(h, ta, tb, m, n, k, *static_cast<const float*>(alpha), {A, at, 0, 0, lda, sa},
              {B, bt, 0, 0, ldb, sb}, *static_cast<const float*>(beta), {C, ct, 0, 0, ldc, sc}, batch);
}
}
