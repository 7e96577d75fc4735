// What a kernel finds wrong in its input. The host learns of it at the next synchronisation.
#pragma once

#include <cstdint>

namespace needle::cuda {

/// The first wrong element that was found since the last synchronisation.
struct Failure {
  enum class Kind { none, index, label, zero_divisor } kind;
  const char* op;         ///< a string of the host
  std::int64_t position;  ///< of the element
  std::int64_t value;
  std::int64_t size;    ///< indices and labels must lie in [0, size)
  std::int64_t except;  ///< a label that counts for nothing
};

/// Throws the Error that tells of it.
[[noreturn]] void tell(const Failure& failure);

}  // namespace needle::cuda
