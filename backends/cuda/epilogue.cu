// What follows a linear map or a convolution, and its gradient.
#include "backends/epilogue.h"

#include "backends/cuda/columns.h"
#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/device_code.h"

namespace needle {

namespace {

template <class Value, class Gradient>
__global__ void __launch_bounds__(256)
    finish_kernel(Value value, Gradient gradient, const float* bias, const float* residual, cuda::Stored y,
                  cuda::Stored slope, std::int64_t width, std::int64_t count) {
  for (std::int64_t i = cuda::grid_index(); i < count; i += cuda::grid_stride()) {
    const float x = cuda::load<float>(y, i) + (bias ? bias[i % width] : 0.0f);
    cuda::store(y, i, value(x) + (residual ? residual[i] : 0.0f));
    if (slope.data) cuda::store(slope, i, gradient(x, 1.0f));
  }
}

constexpr int kThreads = 128;
constexpr std::int64_t kRows = 64;  // that a thread adds up

/// A thread takes a column of a piece of rows.
__global__ void __launch_bounds__(kThreads)
    epilogue_gradient_kernel(cuda::Stored slope, cuda::Stored g, cuda::Stored product, float* sums,
                             std::int64_t rows, std::int64_t width) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= width) return;
  float sum = 0.0f;
  for (std::int64_t row = blockIdx.y * kRows; row < min((blockIdx.y + 1) * kRows, rows); ++row) {
    const std::int64_t i = row * width + column;
    float value = cuda::load<float>(g, i);
    if (slope.data) value *= cuda::load<float>(slope, i);
    if (product.data != g.data || slope.data) cuda::store(product, i, value);
    sum += value;
  }
  sums[blockIdx.y * width + column] = sum;
}

}  // namespace

void CudaBackend::finish_linear(Epilogue function, const View& bias, const View& residual, const View& y,
                                const View& slope) {
  if (function == Epilogue::none && !bias.data && !residual.data && !slope.data) return;
  epilogue::dispatch(function, [&](auto value, auto gradient) {
    run_elements(finish_kernel<decltype(value), decltype(gradient)>, y.count(), value, gradient,
                 bias.as<float>(), residual.as<float>(), y, slope, y.shape.at(-1), y.count());
  });
}

void CudaBackend::epilogue_gradient(const View& slope, const View& g, const View& product,
                                    const View& dbias) {
  cuda::require_float32("linear", computing(g.dtype));
  const std::int64_t rows = g.shape[0], width = g.shape[1], pieces = (rows + kRows - 1) / kRows;
  if (g.count() == 0) return;
  constexpr std::int64_t kMostPieces = 65535;  // of a grid's second axis
  require(pieces <= kMostPieces, "linear: ", rows, " rows are too many on cuda");
  const auto sums = scratch<float>(pieces * width);
  const unsigned columns = static_cast<unsigned>((width + kThreads - 1) / kThreads);
  run(epilogue_gradient_kernel, {dim3(columns, static_cast<unsigned>(pieces)), dim3(kThreads)}, slope, g,
      product, sums.data(), rows, width);
  if (dbias.data)
    run_elements(cuda::add_pieces_kernel, width, sums.data(), pieces,
                 cuda::Columns{dbias.as<float>(), nullptr, width}, std::int64_t{1});
}

}  // namespace needle
