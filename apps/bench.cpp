// `needle bench`: training steps of three decoders, measured against this machine's own matrix product.
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/options.h"
#include "apps/terminal.h"
#include "needle/counters.h"
#include "needle/optim/optimizer.h"
#include "needle/threads.h"
#include "needle/train/trainer.h"

namespace needle {

namespace {

struct BenchOptions {
  std::vector<std::string> names{"W1", "W2", "W3"};
  std::int64_t steps = 0;
  ComputeOptions compute;
  bool json = false;
};

/// A decoder and the batch of a step.
struct Workload {
  std::string name;
  std::int64_t vocabulary, context, width, layers, heads, batch;
};

const std::vector<Workload>& workloads() {
  static const std::vector<Workload> all{
      {"W1", 65, 64, 128, 4, 4, 12}, {"W2", 512, 256, 384, 6, 6, 8}, {"W3", 50257, 64, 768, 12, 12, 4}};
  return all;
}

const Workload& workload_of(const std::string& name) {
  for (const Workload& known : workloads()) {
    if (known.name == name) return known;
  }
  fail("bench: there is no configuration '", name, "'; there are W1, W2 and W3");
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

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

/// Rows of random tokens; the last 1/16 of each is PAD.
Batch random_batch(const Workload& work) {
  Generator random(2);
  std::vector<TokenRow> rows(static_cast<std::size_t>(work.batch));
  const std::int64_t real = work.context - work.context / 16;
  for (TokenRow& row : rows) {  // BOS comes before them
    for (std::int64_t t = 1; t < real; ++t)
      row.push_back(kFirstContentId + random.below(work.vocabulary - kFirstContentId));
  }
  RowFormat format;
  format.context = format.width_multiple = work.context;
  return make_rows_batch(rows, format);
}

/// Where the time of a step went, in seconds.
struct StepTimes {
  double forward, backward, optimizer;
  double total() const { return forward + backward + optimizer; }
};

/// The training of one workload, step by step.
class Training {
 public:
  Training(const Workload& work, Device device)
      : device_(device),
        random_(1),
        model_(config_of(work), random_, device),
        parameters_(model_.parameters()),
        optimizer_(groups_by_rank(parameters_, 0.1), AdamDecay::decoupled, 0.9, 0.95) {
    const Batch batch = random_batch(work);
    input_ = input_of(batch, device);
    labels_ = labels_of(batch, device);
  }

  StepTimes step() {
    const double start = now();
    const Tensor loss = cross_entropy(model_.forward(input_), labels_);
    device_->synchronize();
    const double forward = now();
    loss.backward();
    device_->synchronize();
    const double backward = now();
    optimizer_.step(3e-4, gradient_norm(parameters_, 1).scale);
    optimizer_.clear_gradients();
    device_->synchronize();
    return {forward - start, backward - forward, now() - backward};
  }

  /// Operations of a step's products: the backward pass does each product of the forward pass twice.
  double operations() {
    OperationCounter counter;
    const ObserverScope watch(&counter);
    const NoGrad off;
    model_.forward(input_);
    return 3 * counter.forward_products();
  }

  std::int64_t parameter_count() { return model_.parameter_count(); }

 private:
  static DecoderConfig config_of(const Workload& work) {
    DecoderConfig config;
    config.vocabulary = work.vocabulary;
    config.context = work.context;
    config.width = work.width;
    config.layers = work.layers;
    config.heads = work.heads;
    return config;
  }

  Device device_;
  Generator random_;
  Decoder model_;
  std::vector<Parameter> parameters_;
  Adam optimizer_;
  SequenceInput input_;
  NDArray labels_;
};

/// The product of two float32 matrices [2048, 2048], again and again.
class PeakProduct {
 public:
  explicit PeakProduct(Device device) : device_(device) {
    Generator random(3);
    const Distribution normal{Distribution::Kind::normal, 0, 1};
    a_ = NDArray::random(normal, {kSize, kSize}, random, DType::f32, device);
    b_ = NDArray::random(normal, {kSize, kSize}, random, DType::f32, device);
    y_ = NDArray::empty({kSize, kSize}, DType::f32, device);
    rate();
  }
  /// Operations a second of one product.
  double rate() {
    const double start = now();
    matmul_into(a_, b_, y_, false);
    device_->synchronize();
    return 2.0 * kSize * kSize * kSize / (now() - start);
  }

 private:
  static constexpr std::int64_t kSize = 2048;
  Device device_;
  NDArray a_, b_, y_;
};

/// Steps of one workload with samples of the peak between them. Times in seconds, memory in bytes.
nlohmann::json measure(const Workload& work, const BenchOptions& options, double program_start) {
  constexpr double kSeconds = 8, kRound = 0.25;
  constexpr std::size_t kFewest = 5;
  const double start = now();
  const Device device = use(options.compute);
  Training training(work, device);
  training.step();
  const double first_step_at = now() - program_start;
  const std::uint64_t allocations = device->memory_stats().system_allocations;
  training.step();
  std::uint64_t later_allocations = device->memory_stats().system_allocations - allocations;
  const double operations = training.operations();
  // Read before the peak's own matrices are made: later steps allocate nothing.
  const std::int64_t resident = 1024 * proc_number("/proc/self/status", "VmHWM:");

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
      const StepTimes times = training.step();
      total.push_back(times.total());
      forward.push_back(times.forward);
      backward.push_back(times.backward);
      optimizer.push_back(times.optimizer);
    }
    later_allocations += device->memory_stats().system_allocations - before;
    peak = std::max(peak, product.rate());
  }
  const double seconds = median(total), rate = operations / seconds;
  return {{"configuration", work.name},
          {"parameters", training.parameter_count()},
          {"steps", total.size()},
          {"seconds", seconds},
          {"forward", median(forward)},
          {"backward", median(backward)},
          {"optimizer", median(optimizer)},
          {"tokens_per_second", static_cast<double>(work.batch * work.context) / seconds},
          {"operations", operations},
          {"gflops", rate / 1e9},
          {"peak_gflops", peak / 1e9},
          {"share_of_peak", rate / peak},
          {"resident_bytes", resident},
          {"pool_peak_bytes", device->memory_stats().peak},
          {"allocations_after_first_step", later_allocations},
          {"start_to_first_step", first_step_at},
          {"device", device->description()},
          {"threads", threads()}};
}

/// What measure() gives in a process of its own, so that its memory is its own too.
nlohmann::json measure_apart(const Workload& work, const BenchOptions& options, double program_start) {
  int ends[2];
  require(pipe(ends) == 0, "bench: the system gave no pipe");
  const pid_t child = fork();
  require(child >= 0, "bench: the system gave no process");
  if (child == 0) {
    nlohmann::json result;
    try {
      result = measure(work, options, program_start);
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
  require(result.is_object(), "bench: ", work.name, " ended without a result");
  require(!result.contains("error"), result.value("error", ""));
  return result;
}

void print_head(const nlohmann::json& r) {
  std::cout << "training steps on " << r.at("device").get<std::string>() << ", " << r.at("threads").get<int>()
            << " threads: medians in ms\n"
            << "peak: the fastest product of two float32 matrices 2048 x 2048 between the steps, GFLOP/s\n"
            << "resident: the most that the process held, MiB; allocations: of memory from the system, after "
               "the first step\n"
            << "start: from the start of the program to the end of the first step, s\n\n"
            << "         step  forward  backward  optimizer  tokens/s  GFLOP/s    peak   share  resident  "
               "allocations  start\n";
}

void print_row(const nlohmann::json& r) {
  const auto number = [&](const char* key, double factor, int digits, int width) {
    std::cout << std::right << std::setw(width) << fixed(factor * r.at(key).get<double>(), digits);
  };
  std::cout << std::left << std::setw(4) << r.at("configuration").get<std::string>();
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

void run_bench(const BenchOptions& options) {
  require(options.steps >= 0, "bench: --steps must not be negative, got ", options.steps);
  for (const std::string& name : options.names) workload_of(name);
  // Each workload is measured as if the program had been started for it alone.
  const double age = process_age();
  bool first = true;
  for (const std::string& name : options.names) {
    const nlohmann::json result = measure_apart(workload_of(name), options, now() - age);
    if (options.json) {
      print_json(result);
      continue;
    }
    if (first) print_head(result);
    first = false;
    print_row(result);
  }
}

}  // namespace

void add_bench(CLI::App& program, Outcome&) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* command = program.add_subcommand("bench", "Time and memory of training steps");
  command->footer("Example: needle bench --config W1,W2 --steps 20");
  command->add_option("--config", options->names, "Which decoders")
      ->delimiter(',')
      ->type_name("W1,W2,W3")
      ->capture_default_str();
  add_value(*command, "--steps", options->steps, "Measured steps of each; 0: as many as fit eight seconds");
  add_compute_options(*command, options->compute);
  command->add_flag("--json", options->json, "Print one JSON object a configuration");
  command->callback([options] { run_bench(*options); });
}

}  // namespace needle
