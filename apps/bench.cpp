// `needle bench`: training steps of small models, measured against this machine's own limits and other
// programs.
#include <sched.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "apps/bench_floor.h"
#include "apps/bench_work.h"
#include "apps/command.h"
#include "apps/options.h"
#include "apps/terminal.h"
#include "backends/clock.h"
#include "needle/counters.h"
#include "needle/threads.h"

namespace needle {

namespace {

struct BenchOptions {
  std::vector<std::string> names{"W1", "W2", "W3"};
  std::int64_t steps = 0;
  bool per_op = false, floor = false;
  std::string trace, against, key = "median_ms";
  ComputeOptions compute;
  bool json = false;
};

/// The number below which `share` of the values lie.
double quantile(std::vector<double> values, double share) {
  const auto place = values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size()));
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

double median(const std::vector<double>& values) { return quantile(values, 0.5); }

/// The word after `key` of a /proc file of lines "key value ...", 0 without one.
std::int64_t proc_number(const char* file, const std::string& key) {
  std::ifstream lines(file);
  std::int64_t number = 0;
  for (std::string word; lines >> word;) {
    if (word == key && lines >> number) break;
  }
  return number;
}

/// Seconds since the system started this process, to a hundredth (proc(5), field 22 of stat).
double process_age() {
  std::ifstream stat("/proc/self/stat");
  std::string word;
  std::getline(stat, word, ')');
  for (int field = 3; field <= 22; ++field) stat >> word;
  timespec since_boot{};
  clock_gettime(CLOCK_BOOTTIME, &since_boot);
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  return static_cast<double>(since_boot.tv_sec) + 1e-9 * static_cast<double>(since_boot.tv_nsec) -
         std::stod(word) / ticks;
}

/// The products of a step, as they are counted.
double product_operations(const std::vector<ProfiledOp>& ops) {
  double total = 0;
  for (const ProfiledOp& op : ops) total += is_product(op.op) ? op.operations : 0;
  return total;
}

/// Steps of one piece of work with samples of the peak between them. Times in seconds, memory in bytes.
nlohmann::json measure(const std::string& name, const BenchOptions& options, double program_start) {
  constexpr double kSeconds = 8, kRound = 0.25;
  constexpr std::size_t kFewest = 5;
  const double start = now();
  const Device device = use(options.compute);
  const std::unique_ptr<Work> work = make_work(name, device);
  work->step();
  const double first_step_at = now() - program_start;
  const std::uint64_t allocations = device->memory_stats().system_allocations;
  work->step();
  std::uint64_t later_allocations = device->memory_stats().system_allocations - allocations;
  // Read before anything else is made: later steps allocate nothing.
  const std::int64_t resident = 1024 * proc_number("/proc/self/status", "VmHWM:");
  const std::size_t pool_peak = device->memory_stats().peak;
  Profiler profiler;
  {
    const ObserverScope watch(&profiler);
    work->step();
  }
  const double operations = product_operations(profiler.ops());

  PeakProduct product(device);
  double peak = product.rate();
  std::vector<double> total, forward, backward, optimizer;
  const std::size_t wanted = static_cast<std::size_t>(options.steps);
  const auto enough = [&] {
    return wanted > 0 ? total.size() >= wanted : total.size() >= kFewest && now() - start > kSeconds;
  };
  while (!enough()) {
    const std::uint64_t before = device->memory_stats().system_allocations;
    for (const double round = now(); !enough() && now() - round < kRound;) {
      const StepTimes times = work->step();
      total.push_back(times.total());
      forward.push_back(times.forward);
      backward.push_back(times.backward);
      optimizer.push_back(times.optimizer);
    }
    later_allocations += device->memory_stats().system_allocations - before;
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
                        {"device", device->description()},
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

/// What measure() gives in a process of its own, so that its memory is its own too.
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

void print_head(const nlohmann::json& r) {
  std::cout << "steps on " << r.at("device").get<std::string>() << ", " << r.at("threads").get<int>()
            << " threads: medians in ms\n"
            << "peak: the fastest product of two float32 matrices 2048 x 2048 between the steps, GFLOP/s\n"
            << "resident: the most that the process held, MiB; allocations: of memory from the system, after "
               "the first step\n"
            << "start: from the start of the program to the end of the first step, s\n\n"
            << "                    step  forward  backward  optimizer  tokens/s  GFLOP/s    peak   share  "
               "resident  "
               "allocations  start\n";
}

void print_number(double number, int digits, int width) {
  std::cout << std::right << std::setw(width) << fixed(number, digits);
}

void print_work(const nlohmann::json& r) {
  const auto number = [&](const char* key, double factor, int digits, int width) {
    print_number(factor * r.at(key).get<double>(), digits, width);
  };
  std::cout << std::left << std::setw(15) << r.at("work").get<std::string>();
  number("seconds", 1e3, 1, 9);
  number("forward", 1e3, 1, 9);
  number("backward", 1e3, 1, 10);
  number("optimizer", 1e3, 1, 11);
  number("tokens_per_second", 1, 0, 10);
  number("gflops", 1, 1, 9);
  number("peak_gflops", 1, 1, 8);
  number("share_of_peak", 100, 1, 7);
  std::cout << '%';
  number("resident_bytes", 1.0 / (1 << 20), 0, 10);
  number("allocations_after_first_step", 1, 0, 13);
  number("start_to_first_step", 1, 2, 7);
  std::cout << std::endl;
}

void print_floor(const nlohmann::json& r) {
  const nlohmann::json& floor = r.at("floor");
  const double seconds = floor.at("seconds").get<double>();
  const auto ms = [&](const char* key) { return fixed(1e3 * floor.at(key).get<double>(), 1); };
  std::cout << "  floor " << ms("seconds") << " ms (products " << ms("products") << ", attention "
            << ms("attention") << ", bytes " << ms("bytes") << "): the step reaches "
            << percent(seconds, r.at("seconds").get<double>()) << " of it\n";
}

void print_ops(const nlohmann::json& r) {
  std::cout << "  op                     phase     calls       ms  share   GFLOP/s    GB/s  of its roof\n";
  for (const nlohmann::json& row : r.at("ops")) {
    const double seconds = row.at("seconds").get<double>();
    std::cout << "  " << std::left << std::setw(23) << row.at("op").get<std::string>() << std::setw(9)
              << row.at("phase").get<std::string>();
    print_number(row.at("calls").get<double>(), 0, 6);
    print_number(1e3 * seconds, 3, 9);
    print_number(100 * seconds / r.at("seconds").get<double>(), 1, 6);
    std::cout << '%';
    print_number(row.at("operations").get<double>() / seconds / 1e9, 1, 9);
    print_number(row.at("bytes").get<double>() / seconds / 1e9, 1, 8);
    print_number(100 * row.at("share_of_roof").get<double>(), 0, 7);
    std::cout << "% " << row.at("roof").get<std::string>() << '\n';
  }
}

/// Another program must not inherit what this one has chosen for itself: the one processor that its first
/// thread is bound to, and the settings of threads that it started itself anew with.
class OwnSettingsAside {
 public:
  OwnSettingsAside() {
    sched_getaffinity(0, sizeof bound_, &bound_);
    cpu_set_t all;
    std::memset(&all, 0xFF, sizeof all);
    sched_setaffinity(0, sizeof all, &all);
    forget_restart_settings();
  }
  OwnSettingsAside(const OwnSettingsAside&) = delete;
  OwnSettingsAside& operator=(const OwnSettingsAside&) = delete;
  ~OwnSettingsAside() { sched_setaffinity(0, sizeof bound_, &bound_); }

 private:
  cpu_set_t bound_{};
};

/// The last number of that name that a command prints in a line of JSON.
double number_of_command(const std::string& command, const std::string& key) {
  const OwnSettingsAside aside;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  require(pipe != nullptr, "bench: the command could not be started: ", command);
  std::string output;
  char part[4096];
  while (const std::size_t count = std::fread(part, 1, sizeof part, pipe.get())) output.append(part, count);
  std::istringstream lines(output);
  std::optional<double> found;
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object() && json.contains(key) && json[key].is_number()) found = json[key].get<double>();
  }
  require(found.has_value(), "bench: the command printed no JSON object with a number '", key,
          "': ", command);
  return *found;
}

/// Our step and another command by turns; the ratio of their times, theirs to ours.
void run_against(const BenchOptions& options) {
  constexpr int kRounds = 5;
  require(options.names.size() == 1, "bench: --against wants one --work");
  std::vector<double> ours, theirs, ratios;
  for (int round = 0; round < kRounds; ++round) {
    ours.push_back(1e3 * measure_apart(options.names[0], options, now()).at("seconds").get<double>());
    theirs.push_back(number_of_command(options.against, options.key));
    ratios.push_back(theirs.back() / ours.back());
  }
  const auto spread = [](const std::vector<double>& values) {
    return std::pair{*std::min_element(values.begin(), values.end()),
                     *std::max_element(values.begin(), values.end())};
  };
  if (options.json) {
    return print_json({{"work", options.names[0]},
                       {"ours_ms", ours},
                       {"theirs_ms", theirs},
                       {"ratio", median(ratios)},
                       {"ratio_spread", spread(ratios)}});
  }
  const auto row = [&](const char* label, const std::vector<double>& values, const char* unit) {
    print_row(label, fixed(median(values), 2) + unit + ", " + fixed(spread(values).first, 2) + " to " +
                         fixed(spread(values).second, 2) + " in " + std::to_string(kRounds) +
                         " rounds by turns");
  };
  row("ours", ours, " ms");
  row("theirs", theirs, " ms");
  row("ratio", ratios, "");
}

void run_bench(const BenchOptions& options) {
  require(options.steps >= 0, "bench: --steps must not be negative, got ", options.steps);
  for (const std::string& name : options.names) require_work(name);
  if (!options.against.empty()) return run_against(options);
  // Each piece of work is measured as if the program had been started for it alone.
  const double age = process_age();
  bool first = true;
  for (const std::string& name : options.names) {
    const nlohmann::json result = measure_apart(name, options, now() - age);
    if (options.json) {
      print_json(result);
      continue;
    }
    if (first) print_head(result);
    first = false;
    print_work(result);
    if (options.floor) print_floor(result);
    if (options.per_op) print_ops(result);
  }
}

}  // namespace

void add_bench(CLI::App& program, Outcome&) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* command = program.add_subcommand("bench", "Time and memory of training steps");
  command->footer(
      "Work: decoders W1 (width 128, 4 layers, 64 positions), W2 (384, 6, 256), W3 (768, 12, 64, vocabulary "
      "50257);\n"
      "rnn and lstm (one layer of 256, 128 steps), convolution (six layers of 256), attention-T (T "
      "positions).\n"
      "Examples: needle bench --work W1,W2 --floor --per-op\n"
      "          needle bench --work W1 --against \"other-program --config W1\"");
  command->add_option("--work,--config", options->names, "What to measure")
      ->delimiter(',')
      ->type_name("NAMES")
      ->capture_default_str();
  add_value(*command, "--steps", options->steps, "Measured steps of each; 0: as many as fit eight seconds");
  command->add_flag("--per-op", options->per_op, "A table of each step's ops, too");
  command->add_flag("--floor", options->floor, "What the step could take at best, too");
  command->add_option("--trace", options->trace, "Write one step as a trace for chrome://tracing or Perfetto")
      ->type_name("FILE");
  command
      ->add_option("--against", options->against,
                   "Measure by turns with another command, which prints its milliseconds as JSON")
      ->type_name("COMMAND");
  add_value(*command, "--key", options->key, "The name of those milliseconds");
  add_compute_options(*command, options->compute);
  command->add_flag("--json", options->json, "Print one JSON object a piece of work");
  command->callback([options] { run_bench(*options); });
}

}  // namespace needle
