// Random numbers: a pure function of seed and position, so every thread count gives the same.
#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/loops.h"
#include "backends/scratch.h"

namespace needle {

namespace {

constexpr std::int64_t kPiece = 1024;  // numbers that are drawn together

/// Calls body(first index, count, words) for pieces of `count` numbers. words[i] belongs to index first + i;
/// the word before belongs to the position before, and the one behind to the position behind.
template <class Body>
void for_each_piece(PhiloxStream stream, std::int64_t count, const Body& body) {
#pragma omp parallel for schedule(static) if (count >= kParallelElements)
  for (std::int64_t first = 0; first < count; first += kPiece) {
    const std::uint64_t position = stream.position + static_cast<std::uint64_t>(first);
    constexpr std::int64_t kBlocks = kPiece / 4 + 1;  // one more, as a piece may begin within a block
    std::uint32_t words[4 * kBlocks];
#pragma omp simd
    for (std::int64_t block = 0; block < kBlocks; ++block) {
      const PhiloxBlock bits = philox(stream.seed, position / 4 + static_cast<std::uint64_t>(block));
      for (int i = 0; i < 4; ++i) words[4 * block + i] = bits.words[i];
    }
    body(first, std::min(kPiece, count - first), words + position % 4);
  }
}

/// Runs draw(compact array) on y, or on memory of its own that is then copied to y.
template <class Draw>
void draw_compactly(CpuBackend& backend, MemoryPool& pool, const View& y, const Draw& draw) {
  if (is_compact(y)) return draw(y);
  const Scratch<char> memory(pool, static_cast<std::size_t>(y.count()) * size_of(y.dtype));
  const View compact{memory.data(), y.dtype, y.shape, compact_strides(y.shape)};
  draw(compact);
  backend.copy(compact, y);
}

template <class T>
void draw_normals(const Distribution& distribution, PhiloxStream stream, std::int64_t count, T* y) {
  using A = Arithmetic<T>;
  const A mean = static_cast<A>(distribution.a), deviation = static_cast<A>(distribution.b);
  for_each_piece(stream, count, [&](std::int64_t first, std::int64_t here, const std::uint32_t* words) {
    const std::int64_t odd = static_cast<std::int64_t>(stream.position & 1);  // pieces are even
    const auto put = [&](std::int64_t i, float normal) {
      if (i >= 0 && i < here) y[first + i] = static_cast<T>(mean + deviation * static_cast<A>(normal));
    };
    for (std::int64_t i = -odd; i < here; i += 2) {
      put(i, normal_from_bits(words[i], words[i + 1], false));
      put(i + 1, normal_from_bits(words[i], words[i + 1], true));
    }
  });
}

}  // namespace

void CpuBackend::random(const Distribution& distribution, PhiloxStream stream, const View& y) {
  const std::int64_t count = y.count();
  if (distribution.kind == Distribution::Kind::bernoulli) {
    require(y.dtype == DType::boolean, "random: wants bool, got ", name_of(y.dtype));
    const float chance = static_cast<float>(distribution.a);
    return draw_compactly(*this, pool_, y, [&](const View& to) {
      for_each_piece(stream, count, [&](std::int64_t first, std::int64_t here, const std::uint32_t* words) {
        for (std::int64_t i = 0; i < here; ++i)
          to.as<bool>()[first + i] = uniform_from_bits(words[i]) < chance;
      });
    });
  }
  require(is_floating(y.dtype), "random: wants a floating type, got ", name_of(y.dtype));
  draw_compactly(*this, pool_, y, [&](const View& to) {
    dispatch(y.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      using A = Arithmetic<T>;
      if constexpr (std::is_floating_point_v<A>) {
        if (distribution.kind == Distribution::Kind::normal)
          return draw_normals(distribution, stream, count, to.as<T>());
        const A low = static_cast<A>(distribution.a), high = static_cast<A>(distribution.b);
        for_each_piece(stream, count, [&](std::int64_t first, std::int64_t here, const std::uint32_t* words) {
          T* numbers = to.as<T>() + first;
#pragma omp simd
          for (std::int64_t i = 0; i < here; ++i)
            numbers[i] = static_cast<T>(uniform_between(words[i], low, high));
        });
      }
    });
  });
}

void CpuBackend::dropout(double p, PhiloxStream stream, const View& x, const View& residual, const View& y) {
  require(is_floating(y.dtype), "dropout: wants a floating type, got ", name_of(y.dtype));
  draw_compactly(*this, pool_, y, [&](const View& to) {
    // The mask belongs to the row-major index, so an input of other strides is laid out first.
    if (!is_compact(x)) copy(x, to);
    const View& from = is_compact(x) ? x : to;
    dispatch(y.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      using A = Arithmetic<T>;
      if constexpr (std::is_floating_point_v<A>) {
        const float drop = static_cast<float>(p);
        const A scale = static_cast<A>(p < 1 ? 1 / (1 - p) : 0);
        for_each_piece(stream, y.count(),
                       [&](std::int64_t first, std::int64_t here, const std::uint32_t* words) {
                         const T* in = from.as<T>() + first;
                         T* out = to.as<T>() + first;
#pragma omp simd
                         for (std::int64_t i = 0; i < here; ++i) {
                           const A kept = static_cast<A>(in[i]) * scale;
                           out[i] = static_cast<T>(uniform_from_bits(words[i]) >= drop ? kept : A(0));
                         }
                         if (!residual.data) return;
                         const T* more = residual.as<T>() + first;
#pragma omp simd
                         for (std::int64_t i = 0; i < here; ++i)
                           out[i] = static_cast<T>(static_cast<A>(out[i]) + static_cast<A>(more[i]));
                       });
      }
    });
  });
}

}  // namespace needle
