#include "needle/anomaly.h"

#include <algorithm>
#include <cmath>
#include <sstream>

namespace needle {

bool all_finite(const NDArray& x) {
  if (!x.defined() || !is_floating(x.dtype()) || x.count() == 0) return true;
  // 0 times an infinity or NaN is NaN, and stays one through any sum.
  return std::isfinite(reduce(Sum{}, unary(MultiplyScalar{0}, x)).item());
}

void AnomalyDetector::after(const OpEvent& event) {
  if (std::all_of(event.outputs.begin(), event.outputs.end(), all_finite)) return;
  if (!std::all_of(event.inputs.begin(), event.inputs.end(), all_finite)) return;
  std::ostringstream shapes;
  for (const NDArray& input : event.inputs) shapes << ' ' << input.shape();
  shapes << " ->";
  for (const NDArray& output : event.outputs) shapes << ' ' << output.shape();
  fail("anomaly: ", event.op, " (", name_of(event.phase), ") in ",
       event.path.empty() ? "the model" : event.path, " makes a NaN or infinity out of finite inputs;",
       shapes.str());
}

}  // namespace needle
