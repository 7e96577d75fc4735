// Random numbers: a pure function of seed and position, so every thread count gives the same.
#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/loops.h"

namespace needle {

namespace {

/// Calls element(index, random word) for all indices, four to a Philox block; streams start at multiples of
/// four.
template <class F>
void for_each_word(PhiloxStream stream, std::int64_t count, const F& element) {
  const std::int64_t blocks = (count + 3) / 4;
#pragma omp parallel for schedule(static) if (count >= kParallelElements)
  for (std::int64_t block = 0; block < blocks; ++block) {
    const PhiloxBlock bits = philox(stream.seed, stream.position / 4 + static_cast<std::uint64_t>(block));
    const std::int64_t here = std::min<std::int64_t>(4, count - 4 * block);
    for (std::int64_t i = 0; i < here; ++i) element(4 * block + i, bits.words[i]);
  }
}

}  // namespace

void CpuBackend::random(const Distribution& distribution, PhiloxStream stream, const View& y) {
  const std::int64_t count = y.count();
  if (distribution.kind == Distribution::Kind::bernoulli) {
    const float chance = static_cast<float>(distribution.a);
    for_each_word(stream, count, [&](std::int64_t i, std::uint32_t word) {
      y.as<bool>()[i] = uniform_from_bits(word) < chance;
    });
    return;
  }
  dispatch(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<T>) {
      fail("random: wants a floating type, got ", name_of(y.dtype));
    } else {
      using A = Arithmetic<T>;
      if (distribution.kind == Distribution::Kind::uniform) {
        const A low = static_cast<A>(distribution.a), span = static_cast<A>(distribution.b - distribution.a);
        for_each_word(stream, count, [&](std::int64_t i, std::uint32_t word) {
          y.as<T>()[i] = static_cast<T>(low + span * static_cast<A>(uniform_from_bits(word)));
        });
        return;
      }
      const A mean = static_cast<A>(distribution.a), deviation = static_cast<A>(distribution.b);
#pragma omp parallel for schedule(static) if (count >= kParallelElements)
      for (std::int64_t i = 0; i < count; ++i) {
        const float normal = normal_at(stream.seed, stream.position + static_cast<std::uint64_t>(i));
        y.as<T>()[i] = static_cast<T>(mean + deviation * static_cast<A>(normal));
      }
    }
  });
}

void CpuBackend::dropout(double p, PhiloxStream stream, const View& x, const View& y) {
  // The mask belongs to the row-major index, so an input of other strides is laid out first.
  View source = x;
  if (!is_compact(x)) {
    copy(x, y);
    source = y;
  }
  dispatch(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<T>) {
      fail("dropout: wants a floating type, got ", name_of(y.dtype));
    } else {
      using A = Arithmetic<T>;
      const float drop = static_cast<float>(p);
      const A scale = static_cast<A>(p < 1 ? 1 / (1 - p) : 0);
      for_each_word(stream, y.count(), [&](std::int64_t i, std::uint32_t word) {
        const A kept = static_cast<A>(source.template as<T>()[i]) * scale;
        y.template as<T>()[i] = static_cast<T>(uniform_from_bits(word) >= drop ? kept : A(0));
      });
    }
  });
}

}  // namespace needle
