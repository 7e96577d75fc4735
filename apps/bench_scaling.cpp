// How a step's time grows with the length of its sequences and falls with threads.
#include <iomanip>
#include <iostream>
#include <utility>

#include "apps/bench_measure.h"
#include "apps/bench_work.h"
#include "apps/terminal.h"
#include "backends/clock.h"

namespace needle {

void run_scaling(const BenchOptions& options) {
  constexpr int kLengths = 4;
  bool told = options.json;
  // The device must not be touched before its process is forked: what it is, the first result says.
  const auto tell = [&](const std::string& device) {
    if (std::exchange(told, true)) return;
    std::cout << "steps on " << device << "\n"
              << "a step of T, 2T, 4T and 8T positions, ms; in brackets what a doubling multiplies it by\n"
              << "threads: the time of one thread over that of all, for 8T\n\n"
              << "                  T                T               2T               4T               8T  "
                 "threads\n";
  };
  for (const std::string& name : options.names) {
    const std::int64_t shortest = work_time(name);
    const auto seconds = [&](int doublings, int threads) {
      BenchOptions one = options;
      if (threads > 0) one.compute.threads = threads;
      const nlohmann::json result = measure_apart(work_of_time(name, shortest << doublings), one, now());
      tell(result.at("device").get<std::string>());
      return result.at("seconds").get<double>();
    };
    std::vector<double> all;
    for (int i = 0; i < kLengths; ++i) all.push_back(seconds(i, 0));
    const double alone = seconds(kLengths - 1, 1);
    if (options.json) {
      print_json({{"work", name},
                  {"precision", name_of_choice(options.precision)},
                  {"threads", threads()},
                  {"time", shortest},
                  {"seconds", all},
                  {"seconds_one_thread", alone}});
      continue;
    }
    std::cout << std::left << std::setw(14) << name << std::right << std::setw(5) << shortest;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::string growth = i == 0 ? "" : " (" + fixed(all[i] / all[i - 1], 2) + ")";
      std::cout << std::setw(17) << fixed(1e3 * all[i], 2) + growth;
    }
    std::cout << std::setw(9) << fixed(alone / all.back(), 2) << std::endl;
  }
}

}  // namespace needle
