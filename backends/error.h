// The one exception of the library, and the helper that builds its messages.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace needle {

/// What every function here throws on bad input: the message names the op, what was wanted and what came.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A device that failed at its work, not at what it was asked for.
class DeviceError : public Error {
 public:
  using Error::Error;
};

/// Throws Error with all `parts` written one after the other, as by a stream.
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw Error(message.str());
}

/// Throws Error with `parts` as its message unless `condition` holds. The parts are evaluated in any case,
/// so they should be cheap to name.
template <class... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) [[unlikely]]
    fail(parts...);
}

}  // namespace needle
