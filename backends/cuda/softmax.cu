// Softmax over rows, a block each.
#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/row_math.h"

namespace needle {

using cuda::kRowThreads;

namespace {

__global__ void __launch_bounds__(kRowThreads)
    softmax_kernel(SoftmaxForm form, const float* x, float* y, std::int64_t width) {
  NEEDLE_SHARED(float, scratch, [32]);
  x += blockIdx.x * width;
  y += blockIdx.x * width;
  const float largest = cuda::row_max(x, width, scratch);
  const cuda::Exponential exponential{x, largest};
  const float total = cuda::row_sum(width, scratch, exponential);
  const float factor = 1.0f / total, log_total = std::log(total);
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x)
    y[i] = form == SoftmaxForm::probabilities ? exponential(i) * factor : (x[i] - largest) - log_total;
}

/// What the gradient of a row sums: g y, or g for logarithms.
struct Incoming {
  SoftmaxForm form;
  const float *y, *dy;
  __device__ float operator()(std::int64_t i) const {
    return form == SoftmaxForm::probabilities ? y[i] * dy[i] : dy[i];
  }
};

__global__ void __launch_bounds__(kRowThreads)
    softmax_gradient_kernel(SoftmaxForm form, const float* y, const float* dy, float* dx,
                            std::int64_t width) {
  NEEDLE_SHARED(float, scratch, [32]);
  y += blockIdx.x * width;
  dy += blockIdx.x * width;
  dx += blockIdx.x * width;
  const float total = cuda::row_sum(width, scratch, Incoming{form, y, dy});
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x)
    dx[i] = form == SoftmaxForm::probabilities ? y[i] * (dy[i] - total) : dy[i] - math::exp(y[i]) * total;
}

std::int64_t width_of(const View& x) { return x.rank() == 0 ? 1 : x.shape.at(-1); }

cuda::LaunchConfig blocks_for(const View& x) {
  return cuda::blocks_for_rows(x.count() == 0 ? 0 : rows_of(x), width_of(x));
}

}  // namespace

void CudaBackend::softmax(SoftmaxForm form, const View& x, const View& y) {
  cuda::require_float32("softmax", x.dtype);
  run(softmax_kernel, blocks_for(x), form, x.as<float>(), y.as<float>(), width_of(x));
}

void CudaBackend::softmax_gradient(SoftmaxForm form, const View& y, const View& dy, const View& dx) {
  cuda::require_float32("softmax", y.dtype);
  run(softmax_gradient_kernel, blocks_for(y), form, y.as<float>(), dy.as<float>(), dx.as<float>(),
      width_of(y));
}

}  // namespace needle
