#include "apps/bench_measure.h"

#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>

#include "apps/bench_floor.h"
#include "apps/bench_work.h"
#include "backends/clock.h"
#include "needle/counters.h"
#include "needle/precision.h"

namespace needle {

double quantile(std::vector<double> values, double share) {
  const auto place = values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size()));
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

double process_age() {
  std::ifstream stat("/proc/self/stat");
  std::string word;
  std::getline(stat, word, ')');
  // proc(5): field 22 of stat, in ticks since the system started.
  for (int field = 3; field <= 22; ++field) stat >> word;
  timespec since_boot{};
  clock_gettime(CLOCK_BOOTTIME, &since_boot);
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  return static_cast<double>(since_boot.tv_sec) + 1e-9 * static_cast<double>(since_boot.tv_nsec) -
         std::stod(word) / ticks;
}

namespace {

/// The word after `key` of a /proc file of lines "key value ...", 0 without one.
std::int64_t proc_number(const char* file, const std::string& key) {
  std::ifstream lines(file);
  std::int64_t number = 0;
  for (std::string word; lines >> word;) {
    if (word == key && lines >> number) break;
  }
  return number;
}

/// The products of a step, as they are counted.
double product_operations(const std::vector<ProfiledOp>& ops) {
  double total = 0;
  for (const ProfiledOp& op : ops) total += is_product(op.op) ? op.operations : 0;
  return total;
}

/// What measure_apart() gives, measured in this process.
nlohmann::json measure(const std::string& name, const BenchOptions& options, double program_start) {
  constexpr double kSeconds = 8, kRound = 0.25;
  constexpr std::size_t kFewest = 5;
  const double start = now();
  const Device device = use(options.compute);
  const PrecisionScope precision(options.precision);
  require(!device->is_emulated(), "bench: ", device.name(), " is emulated; its times say nothing");
  const std::unique_ptr<Work> work = make_work(name, device);
  work->step();
  const double first_step_at = now() - program_start;
  const std::uint64_t allocations = device->memory_stats().system_allocations;
  for (int i = 0; i < 3; ++i) work->step();
  const std::uint64_t later_allocations = device->memory_stats().system_allocations - allocations;
  // Read before anything else is made, which would share the pool.
  const std::int64_t resident = 1024 * proc_number("/proc/self/status", "VmHWM:");
  const std::size_t pool_peak = device->memory_stats().peak;
  Profiler profiler;
  {
    const ObserverScope watch(&profiler);
    work->step();
  }
  const double operations = product_operations(profiler.ops());

  // A device that runs ahead is waited for once in many steps, as a training run does.
  constexpr int kBlock = 50;
  const bool ahead = device->runs_ahead();
  if (options.graph) work->record();
  PeakProduct product(device);
  double peak = product.rate();
  std::vector<double> total, forward, backward, optimizer;
  const std::size_t wanted = static_cast<std::size_t>(options.steps);
  const auto enough = [&] {
    return wanted > 0 ? total.size() >= wanted : total.size() >= kFewest && now() - start > kSeconds;
  };
  while (!enough()) {
    for (const double round = now(); !enough() && now() - round < kRound;) {
      const StepTimes times = options.graph ? StepTimes() : work->step();
      total.push_back(ahead ? work->seconds_of(kBlock) : times.total());
      forward.push_back(times.forward);
      backward.push_back(times.backward);
      optimizer.push_back(times.optimizer);
    }
    peak = std::max(peak, product.rate());
  }
  const double seconds = median(total), rate = operations / seconds;
  nlohmann::json result{{"work", name},
                        {"parameters", work->parameter_count()},
                        {"steps", total.size()},
                        {"seconds", seconds},
                        {"quartiles", {quantile(total, 0.25), quantile(total, 0.75)}},
                        {"forward", median(forward)},
                        {"backward", median(backward)},
                        {"optimizer", median(optimizer)},
                        {"tokens_per_second", static_cast<double>(work->tokens()) / seconds},
                        {"operations", operations},
                        {"gflops", rate / 1e9},
                        {"peak_gflops", peak / 1e9},
                        {"share_of_peak", rate / peak},
                        {"resident_bytes", resident},
                        {"pool_peak_bytes", pool_peak},
                        {"allocations_after_first_step", later_allocations},
                        {"start_to_first_step", first_step_at},
                        {"device", device->description(options.precision)},
                        {"precision", name_of_choice(options.precision)},
                        {"graph", options.graph},
                        {"threads", threads()}};
  if (options.floor) result["floor"] = step_floor(*work, profiler.ops(), device);
  if (options.per_op) result["ops"] = op_rows(*work, device);
  if (!options.trace.empty()) {
    Profiler traced;
    const ObserverScope watch(&traced);
    work->step();
    write_trace(options.trace, traced.ops());
  }
  return result;
}

}  // namespace

nlohmann::json measure_apart(const std::string& name, const BenchOptions& options, double program_start) {
  int ends[2];
  require(pipe(ends) == 0, "bench: the system gave no pipe");
  const pid_t child = fork();
  require(child >= 0, "bench: the system gave no process");
  if (child == 0) {
    nlohmann::json result;
    try {
      result = measure(name, options, program_start);
    } catch (const std::exception& error) {
      result["error"] = error.what();
    }
    const std::string text = result.dump();
    const bool sent = write(ends[1], text.data(), text.size()) == std::ssize(text);
    _exit(sent ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  char part[4096];
  for (ssize_t count; (count = read(ends[0], part, sizeof part)) > 0;)
    text.append(part, static_cast<std::size_t>(count));
  close(ends[0]);
  waitpid(child, nullptr, 0);
  const nlohmann::json result = nlohmann::json::parse(text, nullptr, false);
  require(result.is_object(), "bench: ", name, " ended without a result");
  require(!result.contains("error"), result.value("error", ""));
  return result;
}

}  // namespace needle
