// One product of two matrices on one thread, by the library that is fastest for its shape.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/dtype.h"

namespace needle {

/// Who computes products of float32 matrices: OpenBLAS always can, oneDNN where it was built in; `automatic`
/// takes oneDNN if it is there, but for shapes where OpenBLAS is faster. Float64 is always OpenBLAS's.
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

/// A matrix as libraries take it: row-major [rows, columns], or the transpose of one.
struct Matrix {
  const void* data;
  std::int64_t row_stride, column_stride;
  /// Of `rows` rows and `columns` columns; an axis of size 1 gets a stride that a library takes.
  Matrix(const void* elements, std::int64_t rows, std::int64_t columns, std::int64_t between_rows,
         std::int64_t between_columns)
      : data(elements), row_stride(between_rows), column_stride(between_columns) {
    if (columns == 1 && rows == 1)
      row_stride = column_stride = 1;
    else if (columns == 1)
      column_stride = row_stride == 1 ? rows : 1;
    else if (rows == 1)
      row_stride = column_stride == 1 ? columns : 1;
  }
  bool transposed() const { return column_stride != 1; }
  std::int64_t leading() const { return transposed() ? column_stride : row_stride; }
};

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
