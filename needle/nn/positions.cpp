#include "needle/nn/positions.h"

#include <algorithm>
#include <cmath>

namespace needle {

NDArray position_ids(const NDArray& real, std::span<const std::int64_t> start) {
  require(real.rank() == 2, "position_ids: wants a mask [batch, time], got ", real.shape());
  const std::vector<bool> mask = real.to_vector<bool>();
  const std::int64_t time = real.size(1);
  std::vector<std::int64_t> ids(mask.size());
  for (std::int64_t row = 0; row < real.size(0); ++row) {
    std::int64_t seen = start.empty() ? 0 : start[static_cast<std::size_t>(row)];
    for (std::int64_t t = 0; t < time; ++t) {
      const std::size_t place = static_cast<std::size_t>(row * time + t);
      seen += mask[place];
      ids[place] = std::max<std::int64_t>(seen - 1, 0);
    }
  }
  return NDArray::from(ids, real.shape(), real.device());
}

NDArray window_pairs(const NDArray& real, std::int64_t queries, std::int64_t window) {
  const std::vector<bool> mask = real.to_vector<bool>();
  const std::int64_t batch = real.size(0), keys = real.size(1);
  std::vector<std::int64_t> seen(mask.size());  // real tokens of the row up to each place
  bool gap = false;
  for (std::int64_t row = 0; row < batch; ++row) {
    std::int64_t count = 0;
    bool ended = false;
    for (std::int64_t j = 0; j < keys; ++j) {
      const std::size_t place = static_cast<std::size_t>(row * keys + j);
      gap = gap || (mask[place] && ended);
      ended = !mask[place] && count > 0;
      seen[place] = count += mask[place];
    }
  }
  if (!gap) return {};
  std::vector<std::uint8_t> pairs;
  for (std::int64_t row = 0; row < batch; ++row) {
    const auto before = seen.begin() + row * keys;
    for (std::int64_t t = keys - queries; t < keys; ++t) {
      for (std::int64_t j = 0; j < keys; ++j) pairs.push_back(before[t] - before[j] < window);
    }
  }
  return NDArray::from(pairs, {batch, 1, queries, keys}, real.device());
}

NDArray sinusoidal_table(std::int64_t count, std::int64_t width, DType dtype, Device device) {
  require(width % 2 == 0, "sinusoidal positions: the width must be even, got ", width);
  std::vector<double> table;
  for (std::int64_t t = 0; t < count; ++t) {
    for (std::int64_t column = 0; column < width; ++column) {
      const double exponent = static_cast<double>(column / 2 * 2) / static_cast<double>(width);
      const double angle = static_cast<double>(t) / std::pow(10000.0, exponent);
      table.push_back(column % 2 == 0 ? std::sin(angle) : std::cos(angle));
    }
  }
  return NDArray::from(table, {count, width}, device).cast(dtype);
}

}  // namespace needle
