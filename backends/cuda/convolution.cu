// Causal convolution as shifted products, one for each tap, accumulated in place: nothing is unfolded into
// columns.
#include <algorithm>

#include "backends/cuda/columns.h"
#include "backends/cuda/cuda_backend.h"

namespace needle {

namespace {

/// `count` times of x [batch, time, width] from `first` on.
View times(View x, std::int64_t first, std::int64_t count) {
  x.data = x.as<float>() + first * x.strides[1];
  x.shape[1] = count;
  return x;
}

/// `count` rows of the batch from `first` on.
View rows(View x, std::int64_t first, std::int64_t count) {
  x.data = x.as<float>() + first * x.strides[0];
  x.shape[0] = count;
  return x;
}

/// The last two axes exchanged.
View transposed(View x) {
  const int last = x.rank() - 1;
  std::swap(x.shape[last], x.shape[last - 1]);
  std::swap(x.strides[last], x.strides[last - 1]);
  return x;
}

/// The same matrix for all rows of a batch.
View for_batch(View matrix, std::int64_t batch) {
  matrix.shape.insert(0, batch);
  matrix.strides.insert(0, 0);
  return matrix;
}

}  // namespace

void CudaBackend::causal_convolution(std::int64_t dilation, Epilogue epilogue, const View& x,
                                     const View& weight, const View& bias, const View& residual,
                                     const View& y, const View& slope) {
  cuda::require_float32("causal_convolution", y.dtype);
  const std::int64_t batch = x.shape[0], time = x.shape[1];
  for (std::int64_t tap = 0; tap < weight.shape[0] && tap * dilation < time; ++tap) {
    const std::int64_t shift = tap * dilation, count = time - shift;
    matmul(times(x, 0, count), for_batch(weight[tap], batch), times(y, shift, count), tap > 0);
  }
  finish_linear(epilogue, bias, residual, y, slope);
}

void CudaBackend::causal_convolution_gradient(std::int64_t dilation, const View& x, const View& weight,
                                              const View& dy, const GradientPlace& dx_place,
                                              const GradientPlace& dweight_place) {
  const View &dx = dx_place.view, &dweight = dweight_place.view;
  cuda::require_float32("causal_convolution", dy.dtype);
  const std::int64_t batch = x.shape[0], time = x.shape[1];
  // The weight's gradient is summed for each of so many rows of the batch at once, then over these.
  constexpr std::int64_t kPieces = 32;
  const std::int64_t pieces = std::min(kPieces, batch), in = weight.shape[1], out = weight.shape[2];
  const Scratch<float> sums = scratch<float>(dweight.data ? pieces * in * out : 0);
  const View partial{sums.data(), DType::f32, {pieces, in, out}, compact_strides({pieces, in, out})};
  for (std::int64_t tap = 0; tap < weight.shape[0]; ++tap) {
    const std::int64_t shift = tap * dilation, count = time - shift;
    if (count <= 0 || batch == 0) {  // the tap reads nothing
      if (dweight.data && !dweight_place.adds) fill(0, dweight[tap]);
      continue;
    }
    const View read = times(x, 0, count), written = times(dy, shift, count);
    if (dx.data)
      matmul(written, for_batch(transposed(weight[tap]), batch), times(dx, 0, count),
             dx_place.adds || tap > 0);
    if (!dweight.data) continue;
    for (std::int64_t first = 0; first < batch; first += pieces) {
      const std::int64_t now = std::min(pieces, batch - first);
      matmul(transposed(rows(read, first, now)), rows(written, first, now), rows(partial, 0, now), first > 0);
    }
    run_elements(cuda::add_pieces_kernel, in * out, sums.data(), pieces, std::int64_t{1},
                 cuda::Columns{GradientPlace{dweight[tap], dweight_place.adds}, GradientPlace{}, in * out});
  }
}

}  // namespace needle
