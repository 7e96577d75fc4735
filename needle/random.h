// A random stream on the host: a seed and the position up to which it has been used.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "backends/philox.h"

namespace needle {

/// A stream of random numbers whose whole state is (seed, position): saving the two saves the stream.
class Generator {
 public:
  explicit Generator(std::uint64_t seed, std::uint64_t position = 0) : seed_(seed), position_(position) {}

  std::uint64_t seed() const { return seed_; }
  std::uint64_t position() const { return position_; }

  /// Sets aside the next `count` positions for a kernel; starts at a multiple of four.
  PhiloxStream reserve(std::uint64_t count);
  /// Uniform in [0, 1) with 53 bits.
  double uniform();
  /// Uniform integer in [0, bound); `bound` must be positive.
  std::int64_t below(std::int64_t bound);
  /// An independent stream named by `index`, a function of the seed alone (not of the position).
  Generator child(std::uint64_t index) const;

  /// Puts `items` into a uniformly random order (Fisher and Yates; Durstenfeld 1964).
  template <class T>
  void shuffle(std::vector<T>& items) {
    for (std::size_t left = items.size(); left > 1; --left) {
      std::swap(items[left - 1], items[static_cast<std::size_t>(below(static_cast<std::int64_t>(left)))]);
    }
  }

 private:
  std::uint64_t seed_, position_;
};

}  // namespace needle
