// The order in which the largest elements come.
#pragma once

#include "backends/host_device.h"

namespace needle {

/// a before b in falling order, NaN first.
template <class A>
HOST_DEVICE bool exceeds(A a, A b) {
  return a > b || (a != a && b == b);
}

}  // namespace needle
