// One product of two matrices on one thread, by what is fastest for its shape.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/matrix.h"

namespace needle {

/// Who computes products of float32 matrices: OpenBLAS always can, oneDNN where it was built in; `automatic`
/// takes oneDNN if it is there, but for shapes where OpenBLAS is faster, and loops of our own for few rows
/// (few_rows.h). Float64 is always OpenBLAS's.
enum class Gemm { automatic, openblas, onednn };

/// Sets it for the CPU device. Throws when oneDNN is wanted and not there.
void choose_gemm(Gemm choice);
/// The libraries of this build.
std::vector<Gemm> available_gemms();
/// Another choice, as long as the scope lives.
class GemmScope {
 public:
  explicit GemmScope(Gemm choice);
  GemmScope(const GemmScope&) = delete;
  GemmScope& operator=(const GemmScope&) = delete;
  ~GemmScope();

 private:
  Gemm previous_;
};
/// What computes products and with which kernels, for reports.
std::string gemm_description();

/// Whether oneDNN computes products of bf16 operands: where the processor has instructions for them, or
/// Gemm::onednn asks for it.
bool has_bf16_products();
/// What computes products of operands of this type, for reports.
std::string gemm_description(DType operands);

/// Whether threads that share a product should take columns of it rather than rows: what measures faster with
/// the library that computes it.
bool prefers_columns(const Matrix& a, std::int64_t n, std::int64_t m, std::int64_t k, bool single);

/// y [n, m] = a [n, k] b [k, m], or y += a b; f32 or f64. Starts no threads.
template <class T>
void gemm(const Matrix& a, const Matrix& b, T* y, std::int64_t y_stride, std::int64_t n, std::int64_t m,
          std::int64_t k, bool accumulate);

/// y [n, m] = a [n, k] b [k, m], or y += a b, of bf16 operands with sums in float32, by oneDNN on all
/// threads; y f32 or bf16. Works on any processor (slowly where has_bf16_products() is false).
void gemm_bf16(const Matrix& a, const Matrix& b, void* y, DType y_dtype, std::int64_t y_stride,
               std::int64_t n, std::int64_t m, std::int64_t k, bool accumulate);

}  // namespace needle
