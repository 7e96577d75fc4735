#include "needle/nn/positions.h"

#include <algorithm>
#include <cmath>

#include "needle/ops/reduce.h"

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

namespace {

/// Whether a row has padding between its real tokens.
bool has_gap(const NDArray& real) {
  const std::vector<bool> mask = real.to_vector<bool>();
  const std::size_t time = static_cast<std::size_t>(real.size(1));
  for (std::size_t start = 0; start < mask.size(); start += time) {
    const auto row = mask.begin() + static_cast<std::ptrdiff_t>(start),
               end = row + static_cast<std::ptrdiff_t>(time);
    const auto ends = std::find(std::find(row, end, true), end, false);
    if (std::find(ends, end, true) != end) return true;
  }
  return false;
}

}  // namespace

NDArray window_pairs(const NDArray& real, std::int64_t queries, std::int64_t window) {
  if (!real.device()->runs_ahead() && !has_gap(real)) return {};
  const std::int64_t batch = real.size(0), keys = real.size(1);
  const auto within = [&](const NDArray& places) {  // [rows, keys]
    const NDArray distance =
        binary(Subtract{}, places.slice(1, keys - queries, keys).reshape({places.size(0), 1, queries, 1}),
               places.reshape({places.size(0), 1, 1, keys}));
    return binary(Less{}, distance, NDArray::scalar(static_cast<double>(window), DType::f32, real.device()));
  };
  // Real queries count real tokens; for PAD, of which nobody hears, places are as good.
  const NDArray seen = cumulative_sum(Tensor(real.cast(DType::f32)), 1).array();
  const NDArray places = NDArray::arange(keys, DType::f32, real.device()).reshape({1, keys});
  return select(real.slice(1, keys - queries, keys).reshape({batch, 1, queries, 1}), within(seen),
                within(places));
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
