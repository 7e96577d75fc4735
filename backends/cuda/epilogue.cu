// What follows a linear map or a convolution, and its gradient.
#include "backends/epilogue.h"

#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/device_code.h"

namespace needle {

namespace {

template <class Value, class Gradient>
__global__ void __launch_bounds__(256)
    finish_kernel(Value value, Gradient gradient, const float* bias, cuda::Stored residual, cuda::Stored y,
                  cuda::Stored slope, std::int64_t width, std::int64_t count) {
  for (std::int64_t i = cuda::grid_index(); i < count; i += cuda::grid_stride()) {
    const float x = cuda::load<float>(y, i) + (bias ? bias[i % width] : 0.0f);
    cuda::store(y, i, value(x) + (residual.data ? cuda::load<float>(residual, i) : 0.0f));
    if (slope.data) cuda::store(slope, i, gradient(x, 1.0f));
  }
}

/// A block takes kColumns neighbouring columns of all rows, its warps every kWarps-th row.
constexpr int kColumns = 32, kWarps = 32;

__global__ void __launch_bounds__(kColumns* kWarps)
    epilogue_gradient_kernel(cuda::Stored slope, cuda::Stored g, cuda::Stored product, float* dbias,
                             bool adds, std::int64_t rows, std::int64_t width) {
  NEEDLE_SHARED(float, sums, [kWarps][kColumns]);
  const int lane = threadIdx.x % kColumns, warp = threadIdx.x / kColumns;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kColumns + lane;
  const bool stores = slope.data || product.data != g.data;
  float sum = 0.0f;
  for (std::int64_t row = warp; row < rows && column < width; row += kWarps) {
    const std::int64_t i = row * width + column;
    float value = cuda::load<float>(g, i);
    if (slope.data) value *= cuda::load<float>(slope, i);
    if (stores) cuda::store(product, i, value);
    sum += value;
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= width || !dbias) return;
  for (int other = 1; other < kWarps; ++other) sum += sums[other][lane];
  dbias[column] = adds ? dbias[column] + sum : sum;
}

}  // namespace

void CudaBackend::finish_linear(Epilogue function, const View& bias, const View& residual, const View& y,
                                const View& slope) {
  if (function == Epilogue::none && !bias.data && !residual.data && !slope.data) return;
  epilogue::dispatch(function, [&](auto value, auto gradient) {
    run_elements(finish_kernel<decltype(value), decltype(gradient)>, y.count(), value, gradient,
                 bias.as<float>(), residual, y, slope, y.shape.at(-1), y.count());
  });
}

void CudaBackend::epilogue_gradient(const View& slope, const View& g, const View& product,
                                    const GradientPlace& dbias) {
  cuda::require_float32("linear", computing(g.dtype));
  const std::int64_t rows = g.shape[0], width = g.shape[1];
  run(epilogue_gradient_kernel,
      {dim3(static_cast<unsigned>((width + kColumns - 1) / kColumns)), dim3(kColumns * kWarps)}, slope, g,
      product, dbias.view.as<float>(), dbias.adds, rows, width);
}

}  // namespace needle
