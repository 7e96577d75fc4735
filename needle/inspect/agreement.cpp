#include "needle/inspect/agreement.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace needle {

double relative_error(const NDArray& ours, const NDArray& right, double scale) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (ours.shape() != right.shape()) return kInfinity;
  const double limit = ours.dtype() == DType::f32 ? std::numeric_limits<float>::max() : kInfinity;
  const std::vector<double> got = ours.to_vector<double>(), wanted = right.to_vector<double>();
  double difference = 0, size = std::max(scale, 1e-30);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double value = std::abs(wanted[i]) > limit ? std::copysign(kInfinity, wanted[i]) : wanted[i];
    if (std::isfinite(value)) {
      if (!std::isfinite(got[i])) return kInfinity;
      difference = std::max(difference, std::abs(got[i] - value));
      size = std::max(size, std::abs(value));
    } else if (!(got[i] == value || (std::isnan(got[i]) && std::isnan(value)))) {
      return kInfinity;
    }
  }
  return difference / size;
}

double largest_magnitude(const NDArray& x) {
  double largest = 0;
  for (const double value : x.to_vector<double>()) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  return largest;
}

}  // namespace needle
