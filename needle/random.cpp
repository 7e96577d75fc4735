#include "needle/random.h"

#include "backends/error.h"

namespace needle {

PhiloxStream Generator::reserve(std::uint64_t count) {
  const std::uint64_t start = (position_ + 3) & ~std::uint64_t{3};
  position_ = start + count;
  return {seed_, start};
}

double Generator::uniform() {
  position_ = (position_ + 1) & ~std::uint64_t{1};
  const std::uint64_t high = philox_word(seed_, position_), low = philox_word(seed_, position_ + 1);
  position_ += 2;
  return static_cast<double>(((high << 32) | low) >> 11) * 0x1p-53;
}

std::int64_t Generator::below(std::int64_t bound) {
  require(bound > 0, "random: bound must be positive, got ", bound);
  // 53 random bits leave a bias of at most bound / 2^53, far below what any data set here can show.
  return static_cast<std::int64_t>(uniform() * static_cast<double>(bound));
}

Generator Generator::child(std::uint64_t index) const {
  const PhiloxBlock block = philox(seed_ ^ 0x6E6565646C652D63ull, index);
  return Generator((std::uint64_t{block.words[0]} << 32) | block.words[1]);
}

}  // namespace needle
