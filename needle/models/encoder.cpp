#include "needle/models/encoder.h"

#include <algorithm>

#include "needle/ops/ops.h"

namespace needle {

namespace {

void check(const char* op, const Tensor& states, const NDArray& real) {
  require(states.rank() == 3, op, ": wants states [batch, time, width], got ", states.shape());
  require(!real.defined() || real.shape() == Shape{states.size(0), states.size(1)}, op, ": wants a mask [",
          states.size(0), ", ", states.size(1), "], got ", real.shape());
}

}  // namespace

Tensor mean_state(const Tensor& states, const NDArray& real) {
  check("mean_state", states, real);
  if (!real.defined()) return mean(states, {1});
  const Tensor weights(real.cast(states.dtype()).unsqueeze(2));
  // Padding is left out by choice: it may hold anything, NaN included.
  const Tensor kept = where(Tensor(real.unsqueeze(2)), states, constant_like(states, 0));
  return sum(kept, {1}) / maximum(sum(weights, {1}), constant_like(states, 1));
}

Tensor class_state(const Tensor& states, const NDArray& real) {
  check("class_state", states, real);
  const std::int64_t batch = states.size(0), time = states.size(1);
  if (!real.defined()) return squeeze(slice(states, 1, 0, 1), 1);
  const std::vector<bool> mask = real.to_vector<bool>();
  std::vector<std::int64_t> places;
  for (std::int64_t row = 0; row < batch; ++row) {
    const auto start = mask.begin() + row * time, end = start + time;
    const auto first = std::find(start, end, true);
    require(first != end, "class_state: row ", row, " has no real position");
    places.push_back(first - mask.begin());
  }
  return gather_rows(reshape(states, {batch * time, -1}), NDArray::from(places, {batch}, states.device()));
}

}  // namespace needle
