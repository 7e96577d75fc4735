// Layer norm and RMS norm over rows, a block each.
#include "backends/cuda/columns.h"
#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/row_math.h"

namespace needle {

using cuda::kRowThreads;

namespace {

/// A number as the sum of one float and what that leaves over, so that subtracting both from floats loses
/// nothing where they are large and close to it.
struct Center {
  float large, small;
  __device__ explicit Center(double mean)
      : large(static_cast<float>(mean)), small(static_cast<float>(mean - static_cast<double>(large))) {}
  __device__ float operator()(float x) const { return (x - large) - small; }
};

/// Numbers of an array from `start` on.
struct Row {
  cuda::Stored x;
  std::int64_t start;
  __device__ float operator[](std::int64_t i) const { return cuda::load<float>(x, start + i); }
};

struct Element {
  Row x;
  __device__ double operator()(std::int64_t i) const { return static_cast<double>(x[i]); }
};

struct SquaredDistance {
  Row x;
  Center centered;
  __device__ float operator()(std::int64_t i) const {
    const float distance = centered(x[i]);
    return distance * distance;
  }
};

/// The mean is taken in double: a float mean of large values would cost the digits in which small spreads
/// live.
__global__ void __launch_bounds__(kRowThreads)
    norm_kernel(NormKind kind, double epsilon, cuda::Stored from, const float* gain, const float* shift,
                cuda::Stored y, double* means, double* inverse_deviations, std::int64_t width) {
  NEEDLE_SHARED(double, double_scratch, [32]);
  NEEDLE_SHARED(float, scratch, [32]);
  const std::int64_t start = blockIdx.x * width;
  const Row x{from, start};
  const double n = static_cast<double>(width);
  const double mean = kind == NormKind::layer ? cuda::row_sum(width, double_scratch, Element{x}) / n : 0.0;
  const Center centered(mean);
  const float squares = cuda::row_sum(width, scratch, SquaredDistance{x, centered});
  const double inverse_deviation = 1 / std::sqrt(static_cast<double>(squares) / n + epsilon);
  if (threadIdx.x == 0) {
    means[blockIdx.x] = mean;
    inverse_deviations[blockIdx.x] = inverse_deviation;
  }
  const float scale = static_cast<float>(inverse_deviation);
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    float value = centered(x[i]) * scale;
    if (gain) value *= gain[i];
    if (shift) value += shift[i];
    cuda::store(y, start + i, value);
  }
}

/// Rows that a block takes one after the other, adding up the gradients of weight and bias: partial [pieces,
/// 2, width].
constexpr std::int64_t kRows = 32;

__global__ void __launch_bounds__(kRowThreads)
    norm_gradient_kernel(NormKind kind, cuda::Stored from, const float* gain, const double* means,
                         const double* inverse_deviations, cuda::Stored dy, cuda::Stored dx, bool accumulate,
                         float* partial, std::int64_t rows, std::int64_t width) {
  NEEDLE_SHARED(float, scratch, [32]);
  float* const weight_sum = partial + blockIdx.x * 2 * width;
  float* const bias_sum = weight_sum + width;
  const std::int64_t first = blockIdx.x * kRows, last = min(first + kRows, rows);
  for (std::int64_t row = first; row < last; ++row) {
    const std::int64_t start = row * width;
    const Row x{from, start};
    const Center centered(means[row]);
    const float scale = static_cast<float>(inverse_deviations[row]);
    // With g the gradient at the normalised row z: dx = (g - mean(g) - z mean(g z)) / deviation.
    float total = 0.0f, along = 0.0f;
    for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) {
      const float incoming = cuda::load<float>(dy, start + i), z = centered(x[i]) * scale;
      const float g = gain ? incoming * gain[i] : incoming;
      total += g;
      along += g * z;
      weight_sum[i] = (row == first ? 0.0f : weight_sum[i]) + incoming * z;
      bias_sum[i] = (row == first ? 0.0f : bias_sum[i]) + incoming;
    }
    if (!dx.data) continue;
    total = cuda::block_reduce(total, scratch, Sum{});
    along = cuda::block_reduce(along, scratch, Sum{});
    const float mean_g = kind == NormKind::layer ? total / static_cast<float>(width) : 0.0f,
                mean_gz = along / static_cast<float>(width);
    for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) {
      const float incoming = cuda::load<float>(dy, start + i), z = centered(x[i]) * scale;
      const float g = gain ? incoming * gain[i] : incoming;
      const float slope = (g - mean_g - z * mean_gz) * scale;
      cuda::store(dx, start + i, accumulate ? cuda::load<float>(dx, start + i) + slope : slope);
    }
  }
}

}  // namespace

void CudaBackend::norm(NormKind kind, double epsilon, const View& x, const View& weight, const View& bias,
                       const View& y, const View& mean, const View& inverse_deviation) {
  cuda::require_float32("norm", computing(x.dtype));
  run(norm_kernel, cuda::blocks_for_rows(x.shape[0], x.shape[1]), kind, epsilon, x, weight.as<float>(),
      bias.as<float>(), y, mean.as<double>(), inverse_deviation.as<double>(), x.shape[1]);
}

void CudaBackend::norm_gradient(NormKind kind, const View& x, const View& weight, const View& mean,
                                const View& inverse_deviation, const View& dy, const GradientPlace& dx,
                                const GradientPlace& dweight, const GradientPlace& dbias) {
  cuda::require_float32("norm", computing(x.dtype));
  const std::int64_t rows = x.shape[0], width = x.shape[1], pieces = (rows + kRows - 1) / kRows;
  const auto partial = scratch<float>(pieces * 2 * width);
  run(norm_gradient_kernel, cuda::blocks_for_rows(pieces, width), kind, x, weight.as<float>(),
      mean.as<double>(), inverse_deviation.as<double>(), dy, dx.view, dx.adds, partial.data(), rows, width);
  if (dweight.view.data || dbias.view.data)
    run_elements(cuda::add_pieces_kernel, 2 * width, partial.data(), pieces, std::int64_t{2},
                 cuda::Columns{dweight, dbias, width});
}

}  // namespace needle
