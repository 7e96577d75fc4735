// Products by cuBLAS. It is column-major: a row-major y = a b is its y^T = b^T a^T, for which nothing moves.
#include <deque>

#include "backends/cuda/cuda_backend.h"
#include "backends/matrix.h"
#include "backends/merged_axes.h"

namespace needle {

namespace {

cudaDataType type_of(DType dtype) {
  if (dtype == DType::bf16) return CUDA_R_16BF;
  return dtype == DType::f16 ? CUDA_R_16F : CUDA_R_32F;
}

/// Elements to which rows of 16-bit matrices must be aligned, so that tensor cores take them.
constexpr std::int64_t kAlignment = 8;

/// Whether cuBLAS takes the last two axes as they lie, and quickly.
bool fits(const View& x) {
  if (!is_matrix(x)) return false;
  if (!is_half(x.dtype)) return true;
  const bool even_batch =
      std::all_of(x.strides.begin(), x.strides.end() - 2, [](auto s) { return s % kAlignment == 0; });
  return even_batch && matrix_of(x).leading() % kAlignment == 0 &&
         reinterpret_cast<std::uintptr_t>(x.data) % (kAlignment * sizeof(BFloat16)) == 0;
}

}  // namespace

View CudaBackend::aligned_like(const View& x, DType dtype, std::deque<Scratch<char>>& owner) {
  View y{nullptr, dtype, x.shape, {}};
  Shape padded = x.shape;
  std::int64_t& width = padded[x.rank() - 1];
  if (is_half(dtype)) width = (width + kAlignment - 1) / kAlignment * kAlignment;
  y.strides = compact_strides(padded);
  y.data = owner.emplace_back(pool(), static_cast<std::size_t>(padded.count()) * size_of(dtype)).data();
  return y;
}

void CudaBackend::product(const View& a, const View& b, const View& y, bool accumulate) {
  const std::int64_t n = y.shape.at(-2), m = y.shape.at(-1), k = a.shape.at(-1);
  const Matrix left = matrix_of(a), right = matrix_of(b), result = matrix_of(y);
  const MergedAxes<3> batch({batch_of(a), batch_of(b), batch_of(y)});
  const float one = 1, beta = accumulate ? 1 : 0;
  const auto integer = [](std::int64_t x) { return static_cast<int>(x); };
  const auto at = [](const View& x, std::int64_t offset) {
    return static_cast<char*>(x.data) + offset * static_cast<std::int64_t>(size_of(x.dtype));
  };
  use();
  // The innermost batch axis goes with the call.
  const std::int64_t together = batch.sizes[0];
  for (std::int64_t call = 0; call < batch.count / together; ++call) {
    std::int64_t offsets[3] = {}, rest = call;
    for (int axis = 1; axis < batch.rank; ++axis) {
      for (int view = 0; view < 3; ++view)
        offsets[view] += rest % batch.sizes[axis] * batch.strides[axis][view];
      rest /= batch.sizes[axis];
    }
    cuda::check(cublasGemmStridedBatchedEx(
                    blas_.get(), right.transposed() ? CUBLAS_OP_T : CUBLAS_OP_N,
                    left.transposed() ? CUBLAS_OP_T : CUBLAS_OP_N, integer(m), integer(n), integer(k), &one,
                    at(b, offsets[1]), type_of(b.dtype), integer(right.leading()), batch.strides[0][1],
                    at(a, offsets[0]), type_of(a.dtype), integer(left.leading()), batch.strides[0][0], &beta,
                    at(y, offsets[2]), type_of(y.dtype), integer(result.row_stride), batch.strides[0][2],
                    integer(together), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                "cublasGemmStridedBatchedEx");
    if (waits_after_launches_) wait_for_kernel(nullptr);
  }
}

void CudaBackend::matmul(const View& a, const View& b, const View& y, bool accumulate) {
  cuda::require_float32("matmul", computing(a.dtype));
  require(a.dtype != DType::bf16 || compute_capability_ >= 80,
          "matmul: products of bf16 want compute capability 8.0, ", description_,
          " has less; use f32 or f16");
  if (y.count() == 0) return;
  if (a.shape.at(-1) == 0) {
    if (!accumulate) fill(0, y);
    return;
  }
  View left = a, right = b, target = y;
  fold_batch(left, right, target);
  for (const View* view : {&left, &right}) {
    for (const int axis : {-1, -2}) {
      require(view->shape.at(axis) < std::numeric_limits<int>::max(), "matmul: a size of ",
              view->shape.at(axis), " is too large");
    }
  }
  std::deque<Scratch<char>> owner;
  for (View* operand : {&left, &right}) {
    if (fits(*operand)) continue;
    const View aligned = aligned_like(*operand, operand->dtype, owner);
    copy(*operand, aligned);
    *operand = aligned;
  }
  const bool in_place = fits(target) && (target.strides.at(-1) == 1 || target.shape.at(-1) == 1);
  if (in_place) return product(left, right, target, accumulate);
  const View result = aligned_like(target, target.dtype, owner);
  if (accumulate) copy(target, result);
  product(left, right, result, accumulate);
  copy(result, target);
}

void CudaBackend::linear(Epilogue epilogue, const View& x, const View& weight, const View& bias,
                         const View& residual, const View& y, const View& slope) {
  matmul(x, weight, y, false);
  finish_linear(epilogue, bias, residual, y, slope);
}

}  // namespace needle
