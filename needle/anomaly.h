// Finding the first op that makes a NaN or an infinity.
#pragma once

#include "needle/observer.h"

namespace needle {

/// Throws an Error at the first op, forward or backward, whose output is not finite although its inputs are;
/// it names the op, its module and all shapes. Every op is checked, so a run under it is slower.
class AnomalyDetector final : public Observer {
 public:
  void after(const OpEvent& event) override;
};

/// Whether all elements are finite (true for whole numbers).
bool all_finite(const NDArray& x);

}  // namespace needle
