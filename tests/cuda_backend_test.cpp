// What only the CUDA backend has: failures that come late, memory that runs out, launches, recorded steps.
#include "tests/decoders.h"
#include "tests/on_devices.h"

#ifdef NEEDLE_TESTS_EMULATE
#include <fstream>
#include <functional>

#include "backends/cuda/cuda_backend.h"
#include "cuda_emu/control.h"
#include "needle/observer.h"
#include "needle/ops/ops.h"

#include "needle/train/training.h"
#include "tests/agree.h"
#include "tests/temporary_folder.h"

namespace needle {
namespace {

namespace emu = cuda::emu;

Device cuda_device() { return device_of("cuda"); }

NDArray some(const Shape& shape, DType dtype = DType::f32) {
  Generator random(7);
  return NDArray::random({Distribution::Kind::normal, 0, 1}, shape, random, dtype, cuda_device());
}

TEST(CudaBackend, IsNamedAndCallsItselfEmulated) {
  EXPECT_EQ(cuda_device().name(), "cuda:0");
  EXPECT_EQ(device_of("cuda:0"), cuda_device());
  EXPECT_TRUE(
      contains(cuda_device()->description(), std::vector<std::string>{"emulated", "compute capability"}));
  EXPECT_TRUE(cuda_device()->is_emulated());
  EXPECT_FALSE(cpu()->is_emulated());
  EXPECT_TRUE(
      contains(error_of([] { device_of("cuda:7"); }), std::vector<std::string>{"cuda:7", "cpu, cuda:0"}));
}

TEST(CudaBackend, Float64IsComputedOnTheCpuAlone) {
  const NDArray x = some({3}).cast(DType::f64);
  for (const std::string& message :
       {error_of([&] { unary(Exp{}, x); }), error_of([&] { matmul(x, x); }),
        error_of([&] { reduce(Sum{}, x); }), error_of([&] { softmax(Tensor(x)); })}) {
    EXPECT_TRUE(contains(message, {"f64", "CPU", "cuda"}));
  }
  EXPECT_EQ(x.to(cpu()).dtype(), DType::f64);  // as storage it is fine
}

/// What `dtype` is refused for, each by its name; all arrays are of that type where they hold numbers.
std::vector<std::pair<std::string, std::function<void()>>> kernels_on(DType dtype) {
  const NDArray numbers = NDArray::zeros({64}, dtype, cuda_device()),
                whole = NDArray::zeros({64}, DType::i64, cuda_device());
  const auto view_of = [](const NDArray& x, const Shape& shape) {
    return x.slice(0, 0, shape.count()).reshape(shape).view();
  };
  const View m = view_of(numbers, {2, 4}), row = view_of(numbers, {4}), cube = view_of(numbers, {1, 2, 4}),
             weight = view_of(numbers, {1, 4, 4}), heads = view_of(numbers, {1, 1, 2, 4}), none;
  const View ids = view_of(whole, {2, 4}), labels = view_of(whole, {2}), positions = view_of(whole, {1, 2});
  const RecurrentArrays recurrent{
      cube, view_of(numbers, {4, 4}), none, view_of(numbers, {1, 4}), none, none, cube, none};
  const RecurrentGradients back{cube, none, cube, cube, view_of(numbers, {1, 4}), none};
  const AttentionArrays attended{heads, heads, heads, heads, view_of(numbers, {1, 1, 2})};
  Backend& cuda = *cuda_device();
  std::vector<std::pair<std::string, std::function<void()>>> all{
      {"causal_convolution",
       [=, &cuda] { cuda.causal_convolution(1, {}, cube, weight, none, none, cube, none); }},
      {"causal_convolution",
       [=, &cuda] { cuda.causal_convolution_gradient(1, cube, weight, cube, {cube}, {weight}); }},
      {"cross_entropy", [=, &cuda] { cuda.cross_entropy({}, m, labels, row); }},
      {"cross_entropy", [=, &cuda] { cuda.cross_entropy_gradient({}, m, labels, row, m); }},
      {"rotary", [=, &cuda] { cuda.rotary(10, false, 1, positions, heads, heads); }},
      {"recurrence", [=, &cuda] { cuda.recurrence(RecurrentCell::tanh, recurrent); }},
      {"recurrence", [=, &cuda] { cuda.recurrence_gradient(RecurrentCell::tanh, recurrent, back); }},
      {"scatter_add", [=, &cuda] { cuda.scatter_add(m, 1, ids, m); }},
      {"scatter_add_rows", [=, &cuda] { cuda.scatter_add_rows(m, labels, m); }},
      {"softmax", [=, &cuda] { cuda.softmax({}, m, m); }},
      {"softmax", [=, &cuda] { cuda.softmax_gradient({}, m, m, m); }},
      {"clip", [=, &cuda] { cuda.clip({}, std::vector{m}, numbers.view()); }},
      {"optimizer", [=, &cuda] {
         cuda.adam({}, std::vector{ParameterArrays{m, m, m, m, none}}, numbers.view());
       }}};
  if (is_half(dtype)) return all;
  const auto more = [&](const char* name, const std::function<void()>& call) {
    all.emplace_back(name, call);
  };
  more("argmax", [=, &cuda] { cuda.argmax(m, labels); });
  more("top_k", [=, &cuda] { cuda.top_k(m, m, ids); });
  more("attention", [=, &cuda] { cuda.attention({}, attended); });
  more("linear", [=, &cuda] { cuda.epilogue_gradient(none, m, m, {}); });
  more("norm", [=, &cuda] { cuda.norm({}, 1, m, none, none, m, row, row); });
  more("norm", [=, &cuda] { cuda.norm_gradient({}, m, none, row, row, m, {m}, {}, {}); });
  more("random", [=, &cuda] { cuda.random({}, {}, m); });
  more("dropout", [=, &cuda] { cuda.dropout(0.5, {}, m, none, m); });
  return all;
}

TEST(CudaBackend, KernelsRefuseTypesThatTheyDoNotCompute) {
  for (const auto& [name, call] : kernels_on(DType::f64))
    EXPECT_TRUE(contains(error_of(call), {name + ": wants f32, bf16 or f16", "f64", "CPU"})) << name;
  for (const auto& [name, call] : kernels_on(DType::f16))
    EXPECT_TRUE(contains(error_of(call), {name + ": wants f32, got f16"})) << name;
  const NDArray whole = NDArray::zeros({4}, DType::i32, cuda_device()), x = some({4});
  const View view = whole.view();
  EXPECT_TRUE(
      contains(error_of([&] { cuda_device()->random({}, {}, view); }), {"random", "floating", "i32"}));
  EXPECT_TRUE(contains(error_of([&] { cuda_device()->dropout(0.5, {}, view, {}, view); }),
                       {"dropout", "floating", "i32"}));
  EXPECT_TRUE(
      contains(error_of([&] { cuda_device()->random({Distribution::Kind::bernoulli}, {}, x.view()); }),
               {"random", "bool", "f32"}));
}

TEST(CudaBackend, DevicesAreNotMixed) {
  const NDArray here = some({2, 2}), there = NDArray::ones({2, 2});
  for (const std::string& message :
       {error_of([&] { binary(Add{}, here, there); }), error_of([&] { matmul(here, there); }),
        error_of([&] { Tensor(here) * Tensor(there); }),
        error_of([&] { gather_rows(Tensor(here), NDArray::zeros({1}, DType::i64)); }),
        error_of([&] { cross_entropy(Tensor(here), NDArray::zeros({2}, DType::i64)); }), error_of([&] {
          const Tensor q(here.reshape({1, 1, 2, 2}));
          AttentionOptions options;
          options.key_mask = NDArray::ones({1, 2}, DType::boolean);
          attention(q, q, q, options);
        })}) {
    EXPECT_TRUE(contains(message, std::vector<std::string>{"cpu", "cuda:0"}));
  }
}

TEST(CudaBackend, WrongIndicesAreToldOfWhenTheHostNextWaits) {
  const Tensor table(some({5, 3}));
  const NDArray rows =
      NDArray::from<std::int64_t>(std::vector<std::int64_t>{4, 0, 5, -1}, {4}, cuda_device());
  const Tensor picked = gather_rows(table, rows);  // does not wait, so does not know
  EXPECT_TRUE(contains(error_of([&] { picked.array().to_vector<float>(); }),
                       {"gather_rows", "index 5", "position 2", "[0, 5)"}));
  EXPECT_EQ(error_of([] { cuda_device()->synchronize(); }), "(no error)");  // told once
  EXPECT_EQ(picked.array().slice(0, 2, 4).to_vector<float>(), std::vector<float>(6));
  Backend& cuda = *cuda_device();
  const NDArray x = some({4, 3}), index = rows.unsqueeze(1).broadcast_to({4, 3}).copy(), sums = some({5, 3});
  const NDArray before = sums.copy();
  EXPECT_TRUE(contains(error_of([&] { cuda.scatter_add(x.view(), 0, index.view(), sums.view()); }),
                       {"scatter_add", "index 5", "position 6", "[0, 5)"}));
  EXPECT_TRUE(same(sums.slice(0, 1, 4), before.slice(0, 1, 4)));
}

// --- failures of the device ----------------------------------------------------------------------------

/// An array that a kernel must not read: it lies on the host.
View on_the_host(std::vector<float>& numbers) {
  return {numbers.data(), DType::f32, {std::ssize(numbers)}, {1}};
}

TEST(CudaBackend, AFailureIsSeenWhenTheHostWaitsAndSaysHowToFindIt) {
  cuda_device()->synchronize();  // so that it has no part in what follows
  CudaBackend backend(0);
  std::vector<float> numbers(4);
  backend.unary(Exp{}, on_the_host(numbers), on_the_host(numbers));
  const std::string message = error_of([&] { backend.synchronize(); });
  emu::clear_errors();
  EXPECT_TRUE(
      contains(message, std::vector<std::string>{"cuda:0", "cudaErrorIllegalAddress", "NEEDLE_CUDA_SYNC=1"}));
}

TEST(CudaBackend, WaitingAfterEachLaunchNamesTheKernelTheOpAndTheModule) {
  cuda_device()->synchronize();
  setenv("NEEDLE_CUDA_SYNC", "1", 1);
  CudaBackend backend(0);
  unsetenv("NEEDLE_CUDA_SYNC");
  struct BadOp final : Op {
    explicit BadOp(CudaBackend& where) : backend(where) {}
    CudaBackend& backend;
    std::vector<float> numbers = std::vector<float>(4);
    const char* name() const override { return "bad"; }
    NDArrays compute(const NDArrays&) override {
      backend.unary(Exp{}, on_the_host(numbers), on_the_host(numbers));
      return {};
    }
    Tensors gradient(const Tensors&, const Saved&, const Needs&) override { return {}; }
  };
  const std::string path = "blocks.3.attention";
  const PathScope scope(path);
  const std::string message = error_of([&] { apply_op(std::make_unique<BadOp>(backend), {}); });
  emu::clear_errors();
  EXPECT_TRUE(contains(message, std::vector<std::string>{"elementwise_kernel", "Exp", "forward pass of bad",
                                                         "blocks.3.attention"}));
}

// The kernels that work on a host's array are named, so which ones a call takes is seen.
TEST(CudaBackend, HalvesOfTheRightWidthTakeTensorCores) {
  cuda_device()->synchronize();
  setenv("NEEDLE_CUDA_SYNC", "1", 1);
  CudaBackend backend(0);
  unsetenv("NEEDLE_CUDA_SYNC");
  std::vector<float> numbers(64);
  const View rows{numbers.data(), DType::bf16, {1, 1, 1, 64}, {64, 64, 64, 1}};
  const View log_sum{numbers.data(), DType::f32, {1, 1, 1}, {1, 1, 1}};
  const AttentionArrays arrays{rows, rows, rows, rows, log_sum};
  EXPECT_TRUE(contains(error_of([&] { backend.attention({}, arrays); }), "BFloat16"));
  emu::clear_errors();
  EXPECT_TRUE(contains(error_of([&] {
                         backend.attention_gradient({}, arrays, {rows, rows, rows, rows, {}});
                       }),
                       "state_kernel"));
  emu::clear_errors();
}

// --- launches ------------------------------------------------------------------------------------------

/// Kernels and products that `work` takes.
std::uint64_t launches_of(const std::function<void()>& work) {
  cuda_device()->synchronize();
  const emu::Stats before = emu::stats();
  work();
  cuda_device()->synchronize();
  const emu::Stats after = emu::stats();
  return after.launches - before.launches + after.products - before.products;
}

TEST(CudaBackend, AttentionLaunchesNothingThatIsNotWanted) {
  for (const DType dtype : {DType::f32, DType::bf16}) {  // plain, and on tensor cores
    const NDArray x = some({1, 1, 4, 64}, dtype), y = x.copy(), log_sum = some({1, 1, 4}), first = x.copy(),
                  second = x.copy(), third = x.copy();
    const AttentionArrays arrays{x.view(), x.view(), x.view(), y.view(), log_sum.view()};
    EXPECT_EQ(launches_of([&] { cuda_device()->attention({}, arrays); }), 1u) << name_of(dtype);
    const auto launches_for = [&](const View& query, const View& key, const View& value) {
      const AttentionGradients gradients{x.view(), query, key, value, {}};
      return launches_of([&] { cuda_device()->attention_gradient({}, arrays, gradients); });
    };
    EXPECT_EQ(launches_for(first.view(), {}, {}), 2u) << name_of(dtype);
    EXPECT_EQ(launches_for({}, first.view(), {}), 2u) << name_of(dtype);
    EXPECT_EQ(launches_for({}, {}, first.view()), 2u) << name_of(dtype);
    EXPECT_EQ(launches_for(first.view(), second.view(), third.view()), 3u) << name_of(dtype);
  }
}

TEST(CudaBackend, ProductsLaunchNothingThatIsNotNeeded) {
  const auto launches_for = [](const Shape& a, const Shape& b, DType dtype) {
    const Tensor left(some(a, dtype)), right(some(b, dtype));
    return launches_of([&] { matmul(left, right); });
  };
  EXPECT_EQ(launches_for({2, 3}, {3, 5}, DType::f32), 1u);
  EXPECT_EQ(launches_for({2, 8, 8}, {2, 8, 8}, DType::bf16), 1u);
  // Operands and result by way of copies whose rows tensor cores take.
  EXPECT_EQ(launches_for({2, 3}, {3, 5}, DType::bf16), 4u);
  EXPECT_EQ(launches_for({0, 2, 3}, {0, 3, 5}, DType::f32), 0u);
  const NDArray x = some({2, 3}), weight = some({3, 5}), y = some({2, 5});
  EXPECT_EQ(launches_of([&] {
              cuda_device()->linear(Epilogue::none, x.view(), weight.view(), {}, {}, y.view(), {});
            }),
            1u);
}

TEST(CudaBackend, EmptyCallsLaunchNothing) {
  Backend& cuda = *cuda_device();
  const View numbers = some({2, 0}).view(), none = some({0}).view();
  const NDArray two = NDArray::zeros({2}, DType::i64, cuda_device());
  const View no_ids = two.slice(0, 0, 0).view(), table = some({3, 0}).view();
  EXPECT_EQ(launches_of([&] {
              cuda.random({}, {}, none);
              const View steps = some({2, 3, 0}).view(), square = some({0, 0}).view();
              cuda.recurrence(RecurrentCell::tanh, {steps, square, {}, numbers, {}, {}, steps, {}});
              cuda.recurrence_gradient(RecurrentCell::tanh, {steps, square, {}, numbers, {}, {}, steps, {}},
                                       {steps, {}, steps, steps, numbers, {}});
              cuda.scatter_add_rows(numbers, two.view(), table);
              cuda.gather_rows(table, no_ids, some({0, 0}).view());
              cuda.cross_entropy({}, some({0, 4}).view(), no_ids, none);
            }),
            0u);
  const NDArray gradients = some({2, 4}), numbers_of_rows = NDArray::zeros({2}, DType::f64, cuda_device());
  EXPECT_EQ(launches_of([&] {  // of x alone
              const View x = gradients.view(), kept = numbers_of_rows.view();
              cuda.norm_gradient(NormKind::layer, x, {}, kept, kept, x, {x}, {}, {});
            }),
            1u);
}

TEST(CudaBackend, RandomStreamsBeginAnywhere) {
  const NDArray whole = some({12}), part = some({6});
  for (const std::uint64_t position : {0, 1, 3, 4}) {
    cuda_device()->random({}, {7, 0}, whole.view());
    cuda_device()->random({}, {7, position}, part.view());
    const auto first = static_cast<std::int64_t>(position);
    EXPECT_TRUE(same(part, whole.slice(0, first, first + 6))) << position;
  }
}

TEST(CudaBackend, TooManyRowsAreRefused) {
  NDArray one = NDArray::zeros({1}, DType::f32, cuda_device());
  View many = one.view();
  many.shape = {0x7fffffff, 1};
  many.strides = {0, 0};
  EXPECT_TRUE(contains(error_of([&] { cuda_device()->scatter_add_rows(many, many, many); }),
                       std::vector<std::string>{"scatter_add_rows", "too many"}));
}

TEST(CudaBackend, ProductsInTf32AreTold) {
  const auto description = [] { return CudaBackend(0).description(); };
  EXPECT_FALSE(contains(description(), "TF32"));
  setenv("NEEDLE_CUDA_TF32", "1", 1);
  EXPECT_TRUE(contains(description(), "TF32"));
  unsetenv("NEEDLE_CUDA_TF32");
}

// --- recordings ----------------------------------------------------------------------------------------

TEST(CudaBackend, ARecordedStepRefusesToWait) {
  const NDArray x = some({3});
  const std::pair<const char*, std::function<void()>> works[] = {
      {"a copy from the host", [] { NDArray::from<float>(std::vector<float>{1}, {1}, cuda_device()); }},
      {"a copy to the host", [&] { x.to_vector<float>(); }},
      {"a wait for the device", [] { cuda_device()->synchronize(); }}};
  for (const auto& [what, work] : works) {
    const std::unique_ptr<Recording> recording = cuda_device()->new_recording();
    recording->run(work, 0);
    const std::string message = error_of([&, &its_work = work] { recording->run(its_work, 0); });
    EXPECT_TRUE(contains(message, {"cuda", what, "being recorded"}));
    EXPECT_EQ(x.to_vector<float>().size(), 3u);  // nothing is recorded any more
  }
}

TEST(CudaBackend, MemoryOfARecordingOutlivesATrimAndARequestThatFails) {
  NDArray result = NDArray::zeros({1}, DType::f32, cuda_device());
  const std::unique_ptr<Recording> recording = cuda_device()->new_recording();
  const auto work = [&] {
    const NDArray once = unary(AddScalar{1}, result);
    result.assign(once);
  };
  const std::uint64_t before = emu::stats().graph_launches;
  for (int i = 0; i < 3; ++i) {
    recording->run(work, 0);
    cuda_device()->trim_memory();
    emu::fail_malloc(1);
    EXPECT_TRUE(
        contains(error_of([] { NDArray::empty({5 << 20}, DType::f32, cuda_device()); }), "(no error)"));
  }
  EXPECT_EQ(result.item(), 3);
  EXPECT_EQ(emu::stats().graph_launches - before, 2u);
}

TEST(CudaBackend, KernelsAreNotWaitedForWhileTheyAreRecorded) {
  setenv("NEEDLE_CUDA_SYNC", "1", 1);
  CudaBackend backend(0);
  unsetenv("NEEDLE_CUDA_SYNC");
  const View x{backend.allocate(16), DType::f32, {4}, {1}};
  const std::unique_ptr<Recording> recording = backend.new_recording();
  for (const double value : {1, 2, 2}) recording->run([&] { backend.fill(value, x); }, 0);
  std::vector<float> back(4);
  backend.copy_to_host(x.data, back.data(), 16);
  EXPECT_EQ(back, std::vector<float>(4, 2));
  backend.release(x.data, 16);
}

// --- memory --------------------------------------------------------------------------------------------

TEST(CudaBackend, OutOfMemorySaysWhatThereIsAndWhatToChange) {
  const NDArray kept = some({1 << 20});
  cuda_device()->trim_memory();
  emu::set_memory_limit(emu::stats().live_bytes + (1 << 20));
  const std::string message = error_of([] { NDArray::empty({1 << 20}, DType::f32, cuda_device()); });
  emu::set_memory_limit(std::size_t{1} << 40);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);  // no later launch is told of it
  EXPECT_TRUE(contains(
      message, {"4194304 bytes", "in use", "peak", "cuda:0 has", "free", "--accumulate", "--precision"}));
  EXPECT_EQ(kept.slice(0, 0, 1).to_vector<float>().size(), 1u);
}

TEST(CudaBackend, ARequestThatFailsIsTriedAgainWithoutTheCache) {
  cuda_device()->trim_memory();
  { const NDArray cached = some({1 << 20}); }
  EXPECT_GT(cuda_device()->memory_stats().cached, 0u);
  emu::fail_malloc(1);
  const NDArray x = NDArray::zeros({3 << 20}, DType::f32, cuda_device());
  EXPECT_EQ(cuda_device()->memory_stats().cached, 0u);
  EXPECT_EQ(x.slice(0, -1, 3 << 20).item(), 0);
}

TEST(CudaBackend, WhatAPastRecordingKeptIsThereForOthers) {
  cuda_device()->trim_memory();
  {
    const std::unique_ptr<Recording> recording = cuda_device()->new_recording();
    for (int i = 0; i < 2; ++i)
      recording->run([] { NDArray::zeros({1 << 20}, DType::f32, cuda_device()); }, 0);
  }
  const std::size_t kept = cuda_device()->memory_stats().cached;
  EXPECT_GE(kept, std::size_t{4} << 20);
  emu::fail_malloc(1);
  const NDArray x = NDArray::zeros({9 << 20}, DType::f32, cuda_device());
  EXPECT_LT(cuda_device()->memory_stats().cached, std::size_t{4} << 20);
  EXPECT_EQ(x.slice(0, -1, 9 << 20).item(), 0);
}

// --- a training step -----------------------------------------------------------------------------------

/// A small decoder on the built-in corpus.
TrainSettings small_run() {
  TrainSettings settings;
  settings.steps = 20;
  settings.batch = 2;
  settings.warmup = 2;
  settings.model.width = 16;
  settings.model.heads = 2;
  settings.model.layers = 2;
  settings.model.ffn = 24;
  settings.model.dropout = 0.1;
  settings.evaluate_every = 1000;
  return settings;
}

/// The same on a text, whose batches are all of one shape.
TrainSettings small_run_on(const TemporaryFolder& folder) {
  TrainSettings settings = small_run();
  settings.data.source = DataSource::text;
  settings.data.file = (folder.path() / "text.txt").string();
  std::ofstream file(settings.data.file);
  for (int i = 0; i < 400; ++i) file << "line " << i * i << '\n';
  settings.model.context = 24;
  return settings;
}

std::vector<StepResult> results_of(const TrainSettings& settings, bool graph, Device device) {
  const std::unique_ptr<Dataset> data = make_dataset(settings);
  Trainer trainer(settings, *data, device);
  if (graph) trainer.record_steps();
  for (int i = 0; i < settings.steps; ++i) trainer.begin_step();
  return trainer.finish_steps();
}

std::vector<double> losses_of(const TrainSettings& settings, bool graph, Device device = cuda_device()) {
  std::vector<double> losses;
  for (const StepResult& result : results_of(settings, graph, device)) losses.push_back(result.loss);
  return losses;
}

TEST(CudaTraining, OrdersOfThreadsChangeNoBit) {
  const TemporaryFolder folder;
  std::vector<double> first;
  for (const std::uint64_t seed : {0, 1, 2}) {
    emu::set_seed(seed);
    const std::vector<double> losses = losses_of(small_run_on(folder), false);
    if (seed == 0) first = losses;
    EXPECT_EQ(losses, first) << seed;
  }
  emu::set_seed(0);
}

TEST(CudaTraining, LossesAreTheCpus) {
  const TemporaryFolder folder;
  const std::vector<double> ours = losses_of(small_run_on(folder), false),
                            right = losses_of(small_run_on(folder), false, cpu());
  for (std::size_t i = 0; i < right.size(); ++i) EXPECT_NEAR(ours[i], right[i], 1e-4) << i;
}

TEST(CudaTraining, ARecordedStepIsTheSameToTheLastBit) {
  const TemporaryFolder folder;
  for (const DType precision : {DType::f32, DType::bf16}) {
    TrainSettings settings = small_run_on(folder);
    settings.precision = precision;
    settings.steps = 8;
    const std::uint64_t before = emu::stats().graph_launches;
    EXPECT_EQ(losses_of(settings, true), losses_of(settings, false)) << name_of(precision);
    EXPECT_EQ(emu::stats().graph_launches - before, 6u);  // all but two that warm up
  }
  // Batches of other shapes are stepped as always.
  TrainSettings padded = small_run();
  padded.steps = 6;
  EXPECT_EQ(losses_of(padded, true), losses_of(padded, false));
  EXPECT_TRUE(contains(error_of([] {
                         const std::unique_ptr<Dataset> data = make_dataset(small_run());
                         Trainer(small_run(), *data, cpu()).record_steps();
                       }),
                       std::vector<std::string>{"cuda", "cpu"}));
}

/// Kernels and products of a training step of a decoder of that many layers.
std::uint64_t launches_of_a_step(std::int64_t layers, std::int64_t vocabulary) {
  Generator random(1);
  Decoder model(DecoderConfig::of_size(vocabulary, 8, 16, layers, 2), random, cuda_device());
  const std::vector<Parameter> parameters = model.parameters();
  Adam optimizer(groups_by_rank(parameters, 0.1), AdamDecay::decoupled);
  const NDArray ids = NDArray::zeros({2, 8}, DType::i64, cuda_device()), positions = ids;
  LossOptions options;
  options.divisor = 16;
  const auto step = [&] {
    model.loss({ids, {}, positions}, ids, options).backward();
    optimizer.set_learning_rate(1e-3);
    optimizer.clip({1});
    optimizer.step();
    optimizer.clear_gradients();
    cuda_device()->synchronize();
  };
  step();
  const emu::Stats before = emu::stats();
  step();
  const emu::Stats after = emu::stats();
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.pageable_copies, before.pageable_copies);
  EXPECT_EQ(after.synchronizations - before.synchronizations, 1u);
  return after.launches - before.launches + after.products - before.products;
}

TEST(CudaTraining, AStepTakesFewLaunches) {
  // As the benchmark's W1 and the model of 124 million parameters, but narrower: no width changes the number.
  const std::uint64_t w1 = launches_of_a_step(4, 65), large = launches_of_a_step(12, 65);
  EXPECT_LE(w1, 150u);
  // The loss of 50,257 classes is taken in chunks, with copies whose rows tensor cores take.
  const auto launches_of_loss = [](auto loss) { return launches_of([&] { loss().backward(); }); };
  constexpr std::int64_t kRows = 8 * 1024, kClasses = 50257;
  const std::int64_t rows = 4, chunks = (kRows - 1) / rows_of_chunk(kClasses, DType::f32, cuda_device()) + 1;
  Generator random(1);
  const Distribution numbers{Distribution::Kind::normal, 0, 1};
  const Tensor states(NDArray::random(numbers, {rows, 8}, random, DType::bf16, cuda_device()), true);
  const Tensor table(NDArray::random(numbers, {kClasses, 8}, random, DType::f32, cuda_device()), true);
  const NDArray labels = NDArray::zeros({rows}, DType::i64, cuda_device());
  LossOptions options;
  options.divisor = 1;
  (void)table.array().rounded(DType::bf16);
  const std::uint64_t in_chunks = launches_of_loss(
      [&] { return linear_cross_entropy(states, table, {}, labels, options, rows / chunks); });
  const Tensor small(NDArray::zeros({65, 8}, DType::f32, cuda_device()), true),
      full(NDArray::zeros({rows, 8}, DType::f32, cuda_device()), true);
  const std::uint64_t in_one =
      launches_of_loss([&] { return cross_entropy(matmul_transposed(full, small), labels, options); });
  EXPECT_LE(large - in_one + in_chunks, 12 * 32 + 30u) << in_one << " and " << in_chunks;
  RecordProperty("launches of W1", static_cast<int>(w1));
  RecordProperty("launches of the 124M shape", static_cast<int>(large));
}

TEST(CudaTraining, SixteenBitsFollowTheCurveOfFloat32) {
  const TemporaryFolder folder;
  const std::vector<double> right = losses_of(small_run_on(folder), false);
  for (const DType precision : {DType::bf16, DType::f16}) {
    for (const bool half_residual : {false, true}) {
      TrainSettings settings = small_run_on(folder);
      settings.precision = precision;
      settings.half_residual = half_residual;
      const std::vector<double> ours = losses_of(settings, false);
      for (std::size_t i = 0; i < right.size(); ++i)
        EXPECT_NEAR(ours[i] / right[i], 1, 1e-2) << name_of(precision) << half_residual;
    }
  }
}

TEST(CudaTraining, StepsThatTellNothingWaitForNothing) {
  const TemporaryFolder folder;
  const TrainSettings settings = small_run_on(folder);
  const std::unique_ptr<Dataset> data = make_dataset(settings);
  Trainer trainer(settings, *data, cuda_device());
  trainer.step();
  const emu::Stats before = emu::stats();
  for (int i = 0; i < 5; ++i) trainer.begin_step();
  const emu::Stats begun = emu::stats();
  EXPECT_EQ(trainer.finish_steps().size(), 5u);
  const emu::Stats finished = emu::stats();
  EXPECT_EQ(begun.synchronizations, before.synchronizations);
  EXPECT_EQ(finished.synchronizations, begun.synchronizations + 1);
  EXPECT_EQ(finished.pageable_copies, before.pageable_copies);
  EXPECT_EQ(finished.allocations, before.allocations);
}

TEST(CudaBackend, ManyCopiesToTheDeviceArriveInTheirOrder) {
  std::vector<float> numbers(3 << 20);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i % 65521);
  std::vector<NDArray> arrays;
  for (const std::int64_t count : {5, 1 << 20, 3, 3 << 20, 700001, 1})
    arrays.push_back(NDArray::from(std::span<const float>(numbers.data(), static_cast<std::size_t>(count)),
                                   {count}, cuda_device()));
  for (const NDArray& array : arrays) {
    const std::vector<float> back = array.to_vector<float>();
    EXPECT_TRUE(std::equal(back.begin(), back.end(), numbers.begin())) << back.size();
  }
}

// What a device keeps for itself is not written back by a resumed run of another precision.
TEST(CudaTraining, F16KeepsItsLossScaleAndOthersIgnoreIt) {
  const TemporaryFolder folder;
  TrainSettings settings = small_run_on(folder);
  settings.precision = DType::f16;
  settings.steps = 6;
  const std::unique_ptr<Dataset> data = make_dataset(settings);
  Trainer whole(settings, *data, cuda_device()), first(settings, *data, cuda_device()),
      second(settings, *data, cuda_device());
  EXPECT_EQ(whole.optimizer().step_state().loss_scale, 65536);
  std::vector<double> right, ours;
  for (int i = 0; i < 6; ++i) right.push_back(whole.step().loss);
  for (int i = 0; i < 3; ++i) ours.push_back(first.step().loss);
  first.save(folder.path() / "checkpoint");
  second.load(folder.path() / "checkpoint");
  EXPECT_EQ(second.optimizer().step_state().good_steps, 3);
  for (int i = 0; i < 3; ++i) ours.push_back(second.step().loss);
  EXPECT_EQ(ours, right);
  settings.precision = DType::f32;
  Trainer other(settings, *data, cpu());
  other.load(folder.path() / "checkpoint");
  EXPECT_EQ(other.optimizer().step_state().loss_scale, 1);
  EXPECT_NEAR(other.step().loss, right[3], 2e-2 * right[3]);
}

TEST(CudaTraining, AGradientThatIsNotFiniteChangesNothing) {
  for (const double momentum : {0.0, 0.9}) {
    const Tensor weight(some({4}), true);
    Sgd optimizer({{{{"weight", weight, true, {}}}, 0.0}}, momentum);
    optimizer.set_learning_rate(0.1);
    const std::vector<float> before = weight.array().to_vector<float>();
    Tensor(weight).mutable_grad() = NDArray::full({4}, HUGE_VAL, DType::f32, cuda_device());
    optimizer.clip({1});
    optimizer.step();
    EXPECT_EQ(optimizer.step_state().steps, 0);
    EXPECT_EQ(weight.array().to_vector<float>(), before) << momentum;
  }
}

TEST(CudaTraining, AGradientThatIsNotFiniteHalvesTheScaleAndSkipsTheStep) {
  const Tensor weight(some({4}), true);
  Adam optimizer({{{{"weight", weight, true, {}}}, 0.0}}, AdamDecay::decoupled);
  optimizer.set_loss_scale(1024, 1999);
  optimizer.set_learning_rate(0.1);
  const auto step = [&](double gradient) {
    Tensor(weight).mutable_grad() = NDArray::full({4}, gradient, DType::f32, cuda_device());
    optimizer.clip({1, true});
    optimizer.step();
    return optimizer.step_state();
  };
  const std::vector<float> before = weight.array().to_vector<float>();
  StepState state = step(std::numeric_limits<double>::infinity());
  EXPECT_EQ(state.loss_scale, 512);
  EXPECT_EQ(state.first_bad, 0);
  EXPECT_EQ(state.steps, 0);
  EXPECT_EQ(weight.array().to_vector<float>(), before);
  state = step(512 * 2.0);
  EXPECT_NEAR(state.gradient_norm, 4, 1e-6);  // unscaled before it is clipped
  EXPECT_EQ(state.steps, 1);
  EXPECT_NE(weight.array().to_vector<float>(), before);
  optimizer.set_loss_scale(512, 1999);
  state = step(1);
  EXPECT_EQ(state.loss_scale, 1024);
  EXPECT_EQ(state.good_steps, 0);
}

}  // namespace
}  // namespace needle
#endif
