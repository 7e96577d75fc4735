// Linear maps by quantised weights: with few rows a warp takes a column of the weight, whose bytes are read
// once; with many the weight is converted, for a product of floats.
#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/device_code.h"

namespace needle {

namespace {

constexpr int kWarps = 8, kLanes = 32, kFewRows = 8;

/// y[r, j] = scale[j] times x[r] . weight[j] for all of at most kFewRows rows; warps take columns in turns.
__global__ void __launch_bounds__(kWarps* kLanes)
    few_rows_kernel(const float* x, const std::int8_t* weight, const float* scale, float* y, int rows,
                    std::int64_t inner, std::int64_t width) {
  const int lane = threadIdx.x % kLanes;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * kWarps;
  for (std::int64_t j = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kLanes; j < width;
       j += warps) {
    float sums[kFewRows] = {};
    for (std::int64_t i = lane; i < inner; i += kLanes) {
      const float number = static_cast<float>(weight[j * inner + i]);
      NEEDLE_UNROLL
      for (int r = 0; r < kFewRows; ++r) {
        if (r < rows) sums[r] += x[r * inner + i] * number;
      }
    }
    NEEDLE_UNROLL
    for (int r = 0; r < kFewRows; ++r) {
      const float sum = cuda::warp_reduce(sums[r], Sum{});
      if (lane == 0 && r < rows) y[r * width + j] = sum * scale[j];
    }
  }
}

__global__ void __launch_bounds__(256)
    dequantize_kernel(const std::int8_t* weight, const float* scale, float* floats, std::int64_t inner,
                      std::int64_t count) {
  for (std::int64_t i = cuda::grid_index(); i < count; i += cuda::grid_stride())
    floats[i] = static_cast<float>(weight[i]) * scale[i / inner];
}

}  // namespace

void CudaBackend::linear_int8(Epilogue epilogue, const View& x, const View& weight, const View& scale,
                              const View& bias, const View& residual, const View& y) {
  const std::int64_t rows = x.shape[0], inner = x.shape[1], width = weight.shape[0];
  if (rows == 0 || width == 0) return;
  const View result{y.data, y.dtype, {rows, width}, compact_strides({rows, width})};
  if (rows <= kFewRows) {
    constexpr std::int64_t kMostBlocks = 4096;
    const std::int64_t blocks = std::min(kMostBlocks, (width + kWarps - 1) / kWarps);
    run(few_rows_kernel, {dim3(static_cast<unsigned>(blocks)), dim3(kWarps * kLanes)}, x.as<float>(),
        weight.as<std::int8_t>(), scale.as<float>(), y.as<float>(), static_cast<int>(rows), inner, width);
  } else {
    const Scratch<float> floats = scratch<float>(weight.count());
    run_elements(dequantize_kernel, weight.count(), weight.as<std::int8_t>(), scale.as<float>(),
                 floats.data(), inner, weight.count());
    matmul(x, View{floats.data(), DType::f32, {inner, width}, {1, inner}}, result, false);
  }
  finish_linear(epilogue, bias, residual, result, View{});
}

}  // namespace needle
