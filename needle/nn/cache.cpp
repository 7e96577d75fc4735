#include "needle/nn/cache.h"

#include <algorithm>

namespace needle {

Cache::Cache(int layers, std::int64_t batch, std::int64_t key_heads, std::int64_t longest,
             std::int64_t key_width, DType dtype, Device device)
    : batch_(batch),
      longest_(longest),
      kept_(static_cast<std::size_t>(layers)),
      real_(static_cast<std::size_t>(batch * longest)),
      lengths_(static_cast<std::size_t>(batch)),
      device_(device) {
  const Shape shape{batch, key_heads, longest, key_width};
  for (int layer = 0; layer < layers; ++layer) {
    layers_.push_back({NDArray::empty(shape, dtype, device), NDArray::empty(shape, dtype, device)});
  }
}

std::size_t Cache::bytes() const {
  std::size_t total = 0;
  for (const LayerCache& layer : layers_) total += layer.key.bytes() + layer.value.bytes();
  for (const std::vector<NDArray>& arrays : kept_) {
    for (const NDArray& array : arrays) total += array.bytes();
  }
  return total;
}

void Cache::begin(std::int64_t time, const NDArray& real) {
  require(past_ + time <= longest_, "cache: ", past_, " positions are held and ", time,
          " more asked for, but there is room for ", longest_);
  require(!real.defined() || real.shape() == Shape{batch_, time}, "cache: wants a mask [", batch_, ", ", time,
          "]");
  time_ = time;
  const std::vector<bool> given = real.defined()
                                      ? real.to_vector<bool>()
                                      : std::vector<bool>(static_cast<std::size_t>(batch_ * time), true);
  const std::int64_t all = past_ + time;
  std::vector<std::uint8_t> mask;
  for (std::int64_t row = 0; row < batch_; ++row) {
    for (std::int64_t t = 0; t < time; ++t) {
      real_[static_cast<std::size_t>(row * longest_ + past_ + t)] =
          given[static_cast<std::size_t>(row * time + t)];
    }
    const auto start = real_.begin() + row * longest_;
    mask.insert(mask.end(), start, start + all);
  }
  const bool all_real = std::find(mask.begin(), mask.end(), 0) == mask.end();
  key_mask_ = all_real ? NDArray() : NDArray::from(mask, {batch_, all}, device_);
}

LayerCache Cache::extend(int layer, const NDArray& key, const NDArray& value) {
  LayerCache& held = layers_.at(static_cast<std::size_t>(layer));
  held.key.slice(2, past_, past_ + time_).assign(key);
  held.value.slice(2, past_, past_ + time_).assign(value);
  return {held.key.slice(2, 0, past_ + time_), held.value.slice(2, 0, past_ + time_)};
}

void Cache::finish() {
  for (std::int64_t row = 0; row < batch_; ++row) {
    for (std::int64_t t = past_; t < past_ + time_; ++t) {
      lengths_[static_cast<std::size_t>(row)] += real_[static_cast<std::size_t>(row * longest_ + t)];
    }
  }
  past_ += time_;
  time_ = 0;
}

}  // namespace needle
