// Measuring the steps of one piece of work.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/options.h"

namespace needle {

/// What `needle bench` was asked for.
struct BenchOptions {
  std::vector<std::string> names{"W1", "W2", "W3"};
  std::int64_t steps = 0;
  bool per_op = false, floor = false, scaling = false, graph = false;
  std::string trace, against, key = "median_ms";
  DType precision = DType::f32;
  ComputeOptions compute;
  bool json = false;
};

/// The number below which `share` of the values lie.
double quantile(std::vector<double> values, double share);
inline double median(const std::vector<double>& values) { return quantile(values, 0.5); }

/// Seconds since the system started this process, to a hundredth.
double process_age();

/// Steps of one piece of work with samples of the machine's peak between them, in a process of its own, so
/// that its memory is its own too. Times in seconds, memory in bytes.
nlohmann::json measure_apart(const std::string& name, const BenchOptions& options, double program_start);

/// `measure`, which gives milliseconds, and another command by turns, and the ratio of their times, theirs to
/// ours: printed. `about` holds the name of the "work", and what else is said of it in JSON.
void run_against(nlohmann::json about, const std::function<double()>& measure, const std::string& command,
                 const std::string& key, bool json);
/// Adds `needle bench generate`.
void add_bench_generate(CLI::App& bench);
/// The time of a step for T, 2T, 4T and 8T positions, and for one thread and all: printed.
void run_scaling(const BenchOptions& options);

}  // namespace needle
