// `needle bench`: training steps of small models, measured against this machine's own limits and other
// programs.
#include <iomanip>
#include <iostream>
#include <memory>

#include "apps/bench_measure.h"
#include "apps/bench_work.h"
#include "apps/command.h"
#include "apps/terminal.h"
#include "backends/clock.h"

namespace needle {

namespace {

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
            << percent(seconds, r.at("seconds").get<double>())
            << " of it; roofs: " << fixed(floor.at("operation_rate").get<double>() / 1e9, 0)
            << " GFLOP/s in registers, " << fixed(floor.at("bandwidth").get<double>() / 1e9, 0) << " GB/s\n";
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

void run_bench(const BenchOptions& options) {
  require(options.steps >= 0, "bench: --steps must not be negative, got ", options.steps);
  for (const std::string& name : options.names) require_work(name);
  require(options.trace.empty() || options.names.size() == 1, "bench: --trace wants one --work");
  if (!options.against.empty()) {
    require(options.names.size() == 1, "bench: --against wants one --work");
    return run_against(
        {{"work", options.names[0]}, {"precision", name_of_choice(options.precision)}},
        [&] { return 1e3 * measure_apart(options.names[0], options, now()).at("seconds").get<double>(); },
        options.against, options.key, options.json);
  }
  if (options.scaling) return run_scaling(options);
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
      "rnn and lstm (one layer of 256, 128 steps), convolution (six layers of 256),\n"
      "attention (8 heads of 64, 256 positions); for GPUs G124 (GPT-2's smallest, 8 rows of 1024) and\n"
      "G124-attention (8 rows, 12 heads of 64). NAME-T has T positions: W1-128, attention-4096.\n"
      "Examples: needle bench --work W1,W2 --floor --per-op\n"
      "          needle bench --work W1 --against \"other-program --config W1\"");
  command->add_option("--work,--config", options->names, "What to measure")
      ->delimiter(',')
      ->type_name("NAMES")
      ->capture_default_str();
  add_value(*command, "--steps", options->steps, "Measured steps of each; 0: as many as fit eight seconds");
  CLI::Option* const per_op =
      command->add_flag("--per-op", options->per_op, "A table of each step's ops, too");
  CLI::Option* const floor =
      command->add_flag("--floor", options->floor, "What the step could take at best, too");
  CLI::Option* const scaling =
      command->add_flag("--scaling", options->scaling, "Instead: the time against length and threads");
  command->add_flag("--graph", options->graph, "On cuda: record a step once and replay it");
  add_choice(*command, "--precision", options->precision,
             "Operands of products, and activations between them");
  CLI::Option* const trace = command
                                 ->add_option("--trace", options->trace,
                                              "Write one step as a trace for chrome://tracing or Perfetto")
                                 ->type_name("FILE");
  CLI::Option* const against =
      command
          ->add_option("--against", options->against,
                       "Instead: by turns with another command, which prints its milliseconds as JSON")
          ->type_name("COMMAND")
          ->check([](const std::string& text) { return std::string(text.empty() ? "wants a command" : ""); });
  add_value(*command, "--key", options->key, "The name of those milliseconds")->needs(against);
  for (CLI::Option* const instead : {scaling, against}) {
    for (CLI::Option* const other : {per_op, floor, trace}) instead->excludes(other);
  }
  scaling->excludes(against);
  add_compute_options(*command, options->compute);
  command->add_flag("--json", options->json, "Print one JSON object a piece of work");
  add_bench_generate(*command);
  command->callback([command, options] {
    if (command->get_subcommands().empty()) run_bench(*options);
  });
}

}  // namespace needle
