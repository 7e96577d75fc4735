// Rotary positions.
#include <cmath>
#include <vector>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/loops.h"

namespace needle {

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
#pragma omp parallel for schedule(static) if (x.count() >= kParallelElements)
    for (std::int64_t bt = 0; bt < batch * time; ++bt) {
      const std::int64_t b = bt / time, t = bt % time;
      const double position = static_cast<double>(
          positions.as<std::int64_t>()[b * positions.strides[0] + t * positions.strides[1]]);
      std::vector<T> cosines, sines;
      for (const double frequency : frequencies) {
        cosines.push_back(static_cast<T>(std::cos(position * frequency)));
        sines.push_back(static_cast<T>(direction * std::sin(position * frequency)));
      }
      for (std::int64_t h = 0; h < heads; ++h) {
        const T* from = x.as<T>() + b * x.strides[0] + h * x.strides[1] + t * x.strides[2];
        T* to = y.as<T>() + b * y.strides[0] + h * y.strides[1] + t * y.strides[2];
        for (std::int64_t r = 0; r < half; ++r) {
          const T c = cosines[static_cast<std::size_t>(r)], s = sines[static_cast<std::size_t>(r)];
          const T u = from[r * pair * x.strides[3]], v = from[(r * pair + partner) * x.strides[3]];
          to[r * pair * y.strides[3]] = u * c - v * s;
          to[(r * pair + partner) * y.strides[3]] = u * s + v * c;
        }
      }
    }
  });
}

}  // namespace needle
