#include "needle/nn/cache.h"

#include <algorithm>

namespace needle {

namespace {

bool is_same_storage(const std::weak_ptr<const Storage>& a, const std::weak_ptr<const Storage>& b) {
  return !a.owner_before(b) && !b.owner_before(a);
}

/// Rows of the first axis, of which `used` positions of axis 2 count where that is a key's or a value's.
NDArray selected(NDArray& array, std::span<const std::int64_t> rows, std::optional<std::int64_t> used) {
  // Rows that only move up can be written in place.
  bool in_place = true;
  for (std::size_t i = 0; i < rows.size(); ++i) in_place = in_place && (i == 0 || rows[i - 1] < rows[i]);
  const auto count = static_cast<std::int64_t>(rows.size());
  Shape shape = array.shape();
  shape[0] = count;
  NDArray result = in_place ? array.slice(0, 0, count) : NDArray::empty(shape, array.dtype(), array.device());
  const auto part = [used](const NDArray& of, std::int64_t row) {
    const NDArray one = of.slice(0, row, row + 1);
    return used ? one.slice(2, 0, *used) : one;
  };
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = rows[static_cast<std::size_t>(i)];
    if (!in_place || row != i) part(result, i).assign(part(array, row));
  }
  return result;
}

}  // namespace

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

void Cache::serve(Module& model) {
  if (!model_) {
    model_ = &model;
    if (model.is_quantized()) return;  // which can no longer be changed
    for (const Parameter& parameter : model.state()) {
      const NDArray& array = parameter.tensor.array();
      weights_.push_back({parameter.tensor, array.storage(), array.writes()});
    }
  }
  require(model_ == &model, "cache: what it holds was made by another model; begin with a new cache");
  for (const Weight& weight : weights_) {
    const NDArray& array = weight.tensor.array();
    require(is_same_storage(array.storage(), weight.storage) && array.writes() == weight.writes,
            "cache: the model's weights have changed since its past was read; begin with a new cache");
  }
}

void Cache::select(std::span<const std::int64_t> rows) {
  const auto count = static_cast<std::int64_t>(rows.size());
  std::vector<std::uint8_t> real(static_cast<std::size_t>(count * longest_));
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = rows[static_cast<std::size_t>(i)];
    require(row >= 0 && row < batch_, "cache: wants rows in [0, ", batch_, "), got ", row);
    std::copy_n(real_.begin() + row * longest_, longest_, real.begin() + i * longest_);
    if (!lengths_.empty()) lengths.push_back(lengths_[static_cast<std::size_t>(row)]);
  }
  for (LayerCache& layer : layers_) {
    layer.key = selected(layer.key, rows, past_);
    layer.value = selected(layer.value, rows, past_);
  }
  for (std::vector<NDArray>& arrays : kept_) {
    for (NDArray& array : arrays) array = selected(array, rows, {});
  }
  real_ = std::move(real);
  lengths_ = std::move(lengths);
  batch_ = count;
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
  return {held.key.slice(2, 0, past_ + time_).cast(key.dtype()),
          held.value.slice(2, 0, past_ + time_).cast(value.dtype())};
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
