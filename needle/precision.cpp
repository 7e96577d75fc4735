#include "needle/precision.h"

namespace needle {

namespace {

thread_local DType mode = DType::f32, residual_mode = DType::f32;

}  // namespace

DType product_dtype() { return mode; }
DType residual_dtype() { return residual_mode; }

PrecisionScope::PrecisionScope(DType dtype, bool half_residual)
    : previous_(mode), previous_residual_(residual_mode) {
  require(dtype == DType::f32 || is_half(dtype), "precision: wants f32, bf16 or f16, got ", name_of(dtype));
  mode = dtype;
  residual_mode = half_residual ? dtype : DType::f32;
}
PrecisionScope::~PrecisionScope() {
  mode = previous_;
  residual_mode = previous_residual_;
}

}  // namespace needle
