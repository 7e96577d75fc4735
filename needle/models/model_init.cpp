#include "needle/models/model_init.h"

#include <cmath>

namespace needle {

Init init_of(const ModelConfig& config, Generator& random, Device device, DType dtype) {
  const double branches = static_cast<double>((config.cross ? 3 : 2) * config.layers);
  return {random, device, dtype, config.initialisation, 1 / std::sqrt(branches)};
}

ModelConfig fitting(const ModelConfig& config, Device device, DType dtype) {
  const ModelConfig full = config.resolved();
  const double width = static_cast<double>(full.width),
               rows = static_cast<double>(full.layers) * (2 * width + 2 * static_cast<double>(full.ffn)) +
                      static_cast<double>(full.vocabulary);
  const double needed = rows * width * static_cast<double>(size_of(dtype)),
               there = static_cast<double>(device->total_memory());
  require(needed < there, "model: its matrices need ", std::llround(needed / 1e9), " GB, and ", device.name(),
          " has ", std::llround(there / 1e9));
  return full;
}

}  // namespace needle
