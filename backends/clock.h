// The clock that everything is timed with.
#pragma once

#include <chrono>

namespace needle {

/// Seconds of a clock that never goes back; only differences mean something.
inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace needle
