// Rotary positions.
#include <cmath>
#include <vector>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/loops.h"

namespace needle {

namespace {

/// Cosines and sines of all pairs of a row at one position.
template <class T>
struct Turn {
  std::vector<T> cosines, sines;
  void set(std::int64_t position, double direction, const std::vector<double>& frequencies) {
    cosines.clear();
    sines.clear();
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(position) * frequency;
      cosines.push_back(static_cast<T>(std::cos(angle)));
      sines.push_back(static_cast<T>(direction * std::sin(angle)));
    }
  }
};

}  // namespace

void CpuBackend::rotary(double base, bool interleaved, double direction, const View& positions, const View& x,
                        const View& y) {
  dispatch_computing("rotary", x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::int64_t batch = x.shape[0], heads = x.shape[1], time = x.shape[2], half = x.shape[3] / 2;
    std::vector<double> frequencies;
    for (std::int64_t r = 0; r < half; ++r)
      frequencies.push_back(std::pow(base, -static_cast<double>(r) / static_cast<double>(half)));
    // A pair is two steps of 1 apart, or half a row.
    const std::int64_t pair = interleaved ? 2 : 1, partner = interleaved ? 1 : half;
    const std::int64_t from_step = x.strides[3], to_step = y.strides[3];
#pragma omp parallel for schedule(static) if (x.count() >= kParallelElements)
    for (std::int64_t t = 0; t < time; ++t) {
      Turn<T> turn;
      std::int64_t turned_to = 0;
      for (std::int64_t b = 0; b < batch; ++b) {
        const std::int64_t position =
            positions.as<std::int64_t>()[b * positions.strides[0] + t * positions.strides[1]];
        // Mostly the rows of a batch stand at the same positions.
        if (b == 0 || position != turned_to) turn.set(position, direction, frequencies);
        turned_to = position;
        for (std::int64_t h = 0; h < heads; ++h) {
          const T* from = x.as<T>() + b * x.strides[0] + h * x.strides[1] + t * x.strides[2];
          T* to = y.as<T>() + b * y.strides[0] + h * y.strides[1] + t * y.strides[2];
          for (std::int64_t r = 0; r < half; ++r) {
            const T c = turn.cosines[static_cast<std::size_t>(r)],
                    s = turn.sines[static_cast<std::size_t>(r)];
            const T u = from[r * pair * from_step], v = from[(r * pair + partner) * from_step];
            to[r * pair * to_step] = u * c - v * s;
            to[(r * pair + partner) * to_step] = u * s + v * c;
          }
        }
      }
    }
  });
}

}  // namespace needle
