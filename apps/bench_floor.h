// What a step could take at best on this machine, and what each of its ops makes of the machine.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "apps/bench_work.h"
#include "needle/inspect/profile.h"

namespace needle {

/// The product of two float32 matrices [2048, 2048], again and again.
class PeakProduct {
 public:
  explicit PeakProduct(Device device);
  /// Operations a second of one product.
  double rate();

 private:
  static constexpr std::int64_t kSize = 2048;
  Device device_;
  NDArray a_, b_, y_;
};

/// The floor of a step in seconds: its products, each at the best rate that any library reaches for its shape
/// when measured now; attention at the peak rate of multiplications; and the bytes that nothing avoids, 32 a
/// parameter (AdamW reads four arrays and writes three, the gradient is written once) and 12 a logit.
nlohmann::json step_floor(const Work& work, const std::vector<ProfiledOp>& step, Device device);

/// A row an op and phase, over some steps: calls, seconds, operations, bytes, and the share of the roof that
/// bounds it, rate of multiplications or bandwidth.
nlohmann::json op_rows(Work& work, Device device);

}  // namespace needle
