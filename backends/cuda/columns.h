// Sums over rows, as gradients of weights and biases want them: each piece of rows was summed by a block, the
// pieces are added in order.
#pragma once

#include "backends/cuda/device_code.h"

namespace needle::cuda {

/// One or two arrays [width] that sums are added to; null where one is not wanted.
struct Columns {
  float *first, *second;
  std::int64_t width;
};

/// into += the sum over pieces of partial [pieces, 1 or 2, width], whose rows are `first` and `second`.
static __global__ void __launch_bounds__(256)
    add_pieces_kernel(const float* partial, std::int64_t pieces, Columns into, std::int64_t arrays) {
  for (std::int64_t i = grid_index(); i < arrays * into.width; i += grid_stride()) {
    float* const to = i < into.width ? into.first : into.second;
    if (!to) continue;
    float sum = 0.0f;
    for (std::int64_t piece = 0; piece < pieces; ++piece) sum += partial[piece * arrays * into.width + i];
    to[i % into.width] += sum;
  }
}

}  // namespace needle::cuda
