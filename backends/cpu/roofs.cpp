#include "backends/cpu/roofs.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "backends/clock.h"
#include "backends/cpu/lanes.h"
#include "backends/cpu/parallel.h"

namespace needle {

namespace {

/// Steps of kChains independent multiply-adds; what comes out is of no use but keeps them from being left
/// out.
float multiply_and_add(std::int64_t steps, float factor, float summand) {
  constexpr int kChains = 24;  // more than the units can start before the first is done
  lanes::Vector<float> sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = lanes::broadcast(static_cast<float>(i));
  const lanes::Vector<float> a = lanes::broadcast(factor), b = lanes::broadcast(summand);
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) sums[i] = sums[i] * a + b;
  }
  float result = 0;
  for (const lanes::Vector<float>& sum : sums) result += sum[0];
  return result;
}

}  // namespace

double peak_operation_rate() {
  constexpr std::int64_t kSteps = 200'000;
  constexpr int kRounds = 5, kChains = 24;
  const int threads = available_threads();
  double best = 0;
  volatile float sink = 0;
  for (int round = 0; round < kRounds; ++round) {
    const double start = now();
    float total = 0;
#pragma omp parallel for schedule(static) reduction(+ : total)
    for (int thread = 0; thread < threads; ++thread)
      total += multiply_and_add(kSteps, 0.5f + static_cast<float>(thread) * 1e-6f, 1.0f);
    sink = total;
    best = std::max(best, 2.0 * lanes::kLanes<float> * kChains * kSteps * threads / (now() - start));
  }
  static_cast<void>(sink);
  return best;
}

double peak_bandwidth(std::size_t bytes) {
  constexpr int kRounds = 7;
  const std::int64_t count =
      std::max<std::int64_t>(static_cast<std::int64_t>(bytes / sizeof(float) / 3), 1024);
  std::vector<float> a(static_cast<std::size_t>(count)), b = a, c = a;
  const std::int64_t repeats = std::max<std::int64_t>(1, (std::int64_t{1} << 22) / count);
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const double start = now();
    for (std::int64_t repeat = 0; repeat < repeats; ++repeat) {
#pragma omp parallel for simd schedule(static)
      for (std::int64_t i = 0; i < count; ++i)
        c[static_cast<std::size_t>(i)] = a[static_cast<std::size_t>(i)] + 2 * b[static_cast<std::size_t>(i)];
    }
    best = std::max(best, 3.0 * sizeof(float) * static_cast<double>(count * repeats) / (now() - start));
  }
  return best;
}

}  // namespace needle
