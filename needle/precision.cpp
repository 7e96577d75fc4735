#include "needle/precision.h"

namespace needle {

namespace {

thread_local DType mode = DType::f32;

}  // namespace

DType product_dtype() { return mode; }

PrecisionScope::PrecisionScope(DType dtype) : previous_(mode) {
  require(dtype == DType::f32 || is_half(dtype), "precision: wants f32, bf16 or f16, got ", name_of(dtype));
  mode = dtype;
}
PrecisionScope::~PrecisionScope() { mode = previous_; }

}  // namespace needle
