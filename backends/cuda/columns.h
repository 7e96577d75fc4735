// Sums over rows, as gradients of weights and biases want them: each piece of rows was summed by a block, the
// pieces are added in order.
#pragma once

#include "backends/backend.h"
#include "backends/cuda/device_code.h"

namespace needle::cuda {

/// One or two arrays [width] that take sums.
struct Columns {
  struct Place {
    float* data;
    bool adds;
    Place(const GradientPlace& place) : data(place.view.as<float>()), adds(place.adds) {}
  };
  Place first, second;
  std::int64_t width;
};

/// The sums over pieces of partial [pieces, arrays, width] for the first or both arrays of `into`.
static __global__ void __launch_bounds__(256)
    add_pieces_kernel(const float* partial, std::int64_t pieces, std::int64_t arrays, Columns into) {
  for (std::int64_t i = grid_index(); i < arrays * into.width; i += grid_stride()) {
    const Columns::Place& to = i < into.width ? into.first : into.second;
    if (!to.data) continue;
    float sum = 0.0f;
    for (std::int64_t piece = 0; piece < pieces; ++piece) sum += partial[piece * arrays * into.width + i];
    float& element = to.data[i % into.width];
    element = to.adds ? element + sum : sum;
  }
}

}  // namespace needle::cuda
