// Rotary positions.
#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/device_code.h"

namespace needle {

namespace {

constexpr int kThreads = 128;

/// A block turns all heads at one place of the batch; the cosines and sines of its position are computed
/// once, in double as everywhere.
__global__ void __launch_bounds__(kThreads)
    rotary_kernel(double base, bool interleaved, double direction, View positions, View x, View y) {
  NEEDLE_DYNAMIC_SHARED(float, cosines);
  const std::int64_t heads = x.shape[1], time = x.shape[2];
  const int half = static_cast<int>(x.shape[3] / 2);
  float* const sines = cosines + half;
  const std::int64_t b = blockIdx.x / time, t = blockIdx.x % time;
  const std::int64_t position =
      positions.as<std::int64_t>()[b * positions.strides[0] + t * positions.strides[1]];
  for (int r = static_cast<int>(threadIdx.x); r < half; r += kThreads) {
    const double frequency = std::pow(base, -static_cast<double>(r) / half);
    const double angle = static_cast<double>(position) * frequency;
    cosines[r] = static_cast<float>(std::cos(angle));
    sines[r] = static_cast<float>(direction * std::sin(angle));
  }
  __syncthreads();
  // A pair is two steps of 1 apart, or half a row.
  const std::int64_t pair = interleaved ? 2 : 1, partner = interleaved ? 1 : half;
  const float* const from = x.as<float>() + b * x.strides[0] + t * x.strides[2];
  float* const to = y.as<float>() + b * y.strides[0] + t * y.strides[2];
  for (std::int64_t i = threadIdx.x; i < heads * half; i += kThreads) {
    const std::int64_t h = i / half, r = i % half;
    const float c = cosines[r], s = sines[r];
    const std::int64_t from_row = h * x.strides[1], to_row = h * y.strides[1];
    const float u = from[from_row + r * pair * x.strides[3]],
                v = from[from_row + (r * pair + partner) * x.strides[3]];
    to[to_row + r * pair * y.strides[3]] = u * c - v * s;
    to[to_row + (r * pair + partner) * y.strides[3]] = u * s + v * c;
  }
}

}  // namespace

void CudaBackend::rotary(double base, bool interleaved, double direction, const View& positions,
                         const View& x, const View& y) {
  cuda::require_float32("rotary", x.dtype);
  if (x.count() == 0) return;
  const std::size_t pairs = static_cast<std::size_t>(x.shape[3] / 2);
  run(rotary_kernel,
      {dim3(static_cast<unsigned>(positions.count())), dim3(kThreads), 2 * pairs * sizeof(float)}, base,
      interleaved, direction, positions, x, y);
}

}  // namespace needle
