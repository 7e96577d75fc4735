// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011, section 3.3):
// random bits as a pure function of (seed, position), so they are the same on every device and thread count.
#pragma once

#include <cmath>
#include <cstdint>

#include "backends/host_device.h"

namespace needle {

/// Where a run of random numbers begins: number i of the stream is a function of (seed, position + i) alone.
struct PhiloxStream {
  std::uint64_t seed = 0;
  std::uint64_t position = 0;
};

/// Four independent 32-bit words of one counter value.
struct PhiloxBlock {
  std::uint32_t words[4];
};

/// The block of random bits number `counter` under the key `seed`.
HOST_DEVICE inline PhiloxBlock philox(std::uint64_t seed, std::uint64_t counter) {
  std::uint32_t key0 = static_cast<std::uint32_t>(seed), key1 = static_cast<std::uint32_t>(seed >> 32);
  std::uint32_t c0 = static_cast<std::uint32_t>(counter), c1 = static_cast<std::uint32_t>(counter >> 32);
  std::uint32_t c2 = 0, c3 = 0;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0, p1 = std::uint64_t{0xCD9E8D57u} * c2;
    const std::uint32_t high0 = static_cast<std::uint32_t>(p0 >> 32),
                        high1 = static_cast<std::uint32_t>(p1 >> 32);
    c0 = high1 ^ c1 ^ key0;
    c1 = static_cast<std::uint32_t>(p1);
    c2 = high0 ^ c3 ^ key1;
    c3 = static_cast<std::uint32_t>(p0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// The 32 random bits that belong to absolute position `position` of the stream with key `seed`.
HOST_DEVICE inline std::uint32_t philox_word(std::uint64_t seed, std::uint64_t position) {
  return philox(seed, position >> 2).words[position & 3];
}

/// Uniform in [0, 1) with 24 bits, exact in float32.
HOST_DEVICE inline float uniform_from_bits(std::uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}

/// Uniform in [low, high); where rounding meets `high`, the value is `low`.
template <class T>
HOST_DEVICE inline T uniform_between(std::uint32_t bits, T low, T high) {
  const T x = low + (high - low) * static_cast<T>(uniform_from_bits(bits));
  return x < high ? x : low;
}

/// The first or second of the two independent standard normal numbers of two words (Box and Muller, 1958).
HOST_DEVICE inline float normal_from_bits(std::uint32_t first, std::uint32_t second, bool is_second) {
  // In (0, 1], so that the logarithm is finite.
  const double u = (static_cast<double>(first >> 8) + 1.0) * 0x1p-24;
  const double angle = 6.283185307179586 * static_cast<double>(second >> 8) * 0x1p-24;
  const double radius = std::sqrt(-2.0 * std::log(u));
  return static_cast<float>(radius * (is_second ? std::sin(angle) : std::cos(angle)));
}

/// Standard normal number of absolute position `position`; positions 2n and 2n + 1 share one pair of words.
HOST_DEVICE inline float normal_at(std::uint64_t seed, std::uint64_t position) {
  return normal_from_bits(philox_word(seed, position & ~std::uint64_t{1}), philox_word(seed, position | 1),
                          (position & 1) != 0);
}

}  // namespace needle
