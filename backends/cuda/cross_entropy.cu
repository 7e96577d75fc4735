// Cross entropy over rows of logits, a block each.
#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/row_math.h"

namespace needle {

using cuda::kRowThreads;

namespace {

struct Rows {
  const float* logits;
  std::int64_t stride, classes;
  const std::int64_t* labels;
  std::int64_t label_stride;
  CrossEntropySettings settings;

  __device__ const float* row() const { return logits + blockIdx.x * stride; }
  __device__ std::int64_t label() const { return labels[blockIdx.x * label_stride]; }
  /// Whether the row counts; one that is outside is told of by check_labels().
  __device__ bool counts() const {
    return label() != settings.ignore_index && label() >= 0 && label() < classes;
  }
};

/// x[i] - shift.
struct Shifted {
  const float* x;
  float shift;
  __device__ float operator()(std::int64_t i) const { return x[i] - shift; }
};

__global__ void __launch_bounds__(kRowThreads)
    cross_entropy_kernel(Rows rows, float* losses, std::int64_t loss_stride) {
  NEEDLE_SHARED(float, scratch, [32]);
  float* const loss = losses + blockIdx.x * loss_stride;
  if (!rows.counts()) {  // the whole block, so no barrier is missed
    if (threadIdx.x == 0) *loss = 0.0f;
    return;
  }
  const float* const x = rows.row();
  const float largest = cuda::row_max(x, rows.classes, scratch);
  const float log_total = std::log(cuda::row_sum(rows.classes, scratch, cuda::Exponential{x, largest}));
  // Shifted before subtracting: at full magnitude a common offset would swallow the difference.
  const Shifted shifted{x, largest};
  float result = log_total - shifted(rows.label());
  const float smoothing = static_cast<float>(rows.settings.label_smoothing);
  if (smoothing > 0.0f) {
    const float spread = cuda::row_sum(rows.classes, scratch, shifted);
    const float mean_surprise = log_total - spread / static_cast<float>(rows.classes);
    result = (1.0f - smoothing) * result + smoothing * mean_surprise;
  }
  if (threadIdx.x == 0) *loss = result;
}

__global__ void __launch_bounds__(kRowThreads)
    cross_entropy_gradient_kernel(Rows rows, const float* dlosses, std::int64_t dloss_stride, float* dlogits,
                                  std::int64_t dlogit_stride) {
  NEEDLE_SHARED(float, scratch, [32]);
  float* const to = dlogits + blockIdx.x * dlogit_stride;
  if (!rows.counts()) {
    for (std::int64_t i = threadIdx.x; i < rows.classes; i += blockDim.x) to[i] = 0.0f;
    return;
  }
  const float* const x = rows.row();
  const cuda::Exponential exponential{x, cuda::row_max(x, rows.classes, scratch)};
  const float total = cuda::row_sum(rows.classes, scratch, exponential);
  const float incoming = dlosses[blockIdx.x * dloss_stride], factor = incoming / total;
  const float smoothing = static_cast<float>(rows.settings.label_smoothing),
              everywhere = smoothing / static_cast<float>(rows.classes);
  for (std::int64_t i = threadIdx.x; i < rows.classes; i += blockDim.x) {
    const float slope = exponential(i) * factor - everywhere * incoming;  // read before `to`, its place
    to[i] = i == rows.label() ? slope - (1.0f - smoothing) * incoming : slope;
  }
}

Rows rows_of(const CrossEntropySettings& settings, const View& logits, const View& labels) {
  return {logits.as<float>(),        logits.strides[0], logits.shape[1],
          labels.as<std::int64_t>(), labels.strides[0], settings};
}

}  // namespace

void CudaBackend::cross_entropy(const CrossEntropySettings& settings, const View& logits, const View& labels,
                                const View& losses) {
  cuda::require_float32("cross_entropy", logits.dtype);
  check_labels(settings, labels, logits.shape[1]);
  run(cross_entropy_kernel, cuda::blocks_for_rows(logits.shape[0], logits.shape[1]),
      rows_of(settings, logits, labels), losses.as<float>(), losses.strides[0]);
}

void CudaBackend::cross_entropy_gradient(const CrossEntropySettings& settings, const View& logits,
                                         const View& labels, const View& dlosses, const View& dlogits) {
  cuda::require_float32("cross_entropy", logits.dtype);
  run(cross_entropy_gradient_kernel, cuda::blocks_for_rows(logits.shape[0], logits.shape[1]),
      rows_of(settings, logits, labels), dlosses.as<float>(), dlosses.strides[0], dlogits.as<float>(),
      dlogits.strides[0]);
}

}  // namespace needle
