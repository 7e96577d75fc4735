// What only the CUDA backend has: failures that come late, memory that runs out, launches, recorded steps.
#include "tests/decoders.h"
#include "tests/on_devices.h"

#ifdef NEEDLE_TESTS_EMULATE
#include "cuda_emu/control.h"
#include "needle/data/corpus.h"
#include "needle/ops/ops.h"
#include "needle/precision.h"
#include "needle/train/training.h"
#include "tests/agree.h"

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
  EXPECT_TRUE(contains(cuda_device()->description(), {"emulated", "compute capability"}));
  EXPECT_TRUE(cuda_device()->is_emulated());
  EXPECT_FALSE(cpu()->is_emulated());
  EXPECT_TRUE(contains(error_of([] { device_of("cuda:7"); }), {"cuda:7", "cpu, cuda:0"}));
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
    EXPECT_TRUE(contains(message, {"cpu", "cuda:0"}));
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
}

// --- memory --------------------------------------------------------------------------------------------

TEST(CudaBackend, OutOfMemorySaysWhatThereIsAndWhatToChange) {
  const NDArray kept = some({1 << 20});
  cuda_device()->trim_memory();
  emu::set_memory_limit(emu::stats().live_bytes + (1 << 20));
  const std::string message = error_of([] { NDArray::empty({1 << 20}, DType::f32, cuda_device()); });
  emu::set_memory_limit(std::size_t{1} << 40);
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

// --- a training step -----------------------------------------------------------------------------------

/// A small decoder on the built-in corpus.
TrainSettings small_run() {
  TrainSettings settings;
  settings.steps = 20;
  settings.batch = 3;
  settings.warmup = 2;
  settings.model.width = 16;
  settings.model.heads = 2;
  settings.model.layers = 2;
  settings.model.ffn = 24;
  settings.model.dropout = 0.1;
  settings.evaluate_every = 1000;
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
  std::vector<double> first;
  for (const std::uint64_t seed : {0, 1, 2}) {
    emu::set_seed(seed);
    const std::vector<double> losses = losses_of(small_run(), false);
    if (seed == 0) first = losses;
    EXPECT_EQ(losses, first) << seed;
  }
  emu::set_seed(0);
}

TEST(CudaTraining, LossesAreTheCpus) {
  const std::vector<double> ours = losses_of(small_run(), false),
                            right = losses_of(small_run(), false, cpu());
  for (std::size_t i = 0; i < right.size(); ++i) EXPECT_NEAR(ours[i], right[i], 1e-4) << i;
}

TEST(CudaTraining, ARecordedStepIsTheSameToTheLastBit) {
  for (const DType precision : {DType::f32, DType::bf16}) {
    TrainSettings settings = small_run();
    settings.precision = precision;
    EXPECT_EQ(losses_of(settings, true), losses_of(settings, false)) << name_of(precision);
  }
  EXPECT_TRUE(contains(error_of([] {
                         const std::unique_ptr<Dataset> data = make_dataset(small_run());
                         Trainer(small_run(), *data, cpu()).record_steps();
                       }),
                       {"cuda", "cpu"}));
}

TEST(CudaTraining, SixteenBitsFollowTheCurveOfFloat32) {
  const std::vector<double> right = losses_of(small_run(), false);
  for (const DType precision : {DType::bf16, DType::f16}) {
    TrainSettings settings = small_run();
    settings.precision = precision;
    const std::vector<double> ours = losses_of(settings, false);
    for (std::size_t i = 0; i < right.size(); ++i)
      EXPECT_NEAR(ours[i] / right[i], 1, 1e-2) << name_of(precision);
  }
}

TEST(CudaTraining, AStepAsksForNothingAndWaitsForNothing) {
  const TrainSettings settings = small_run();
  const std::unique_ptr<Dataset> data = make_dataset(settings);
  Trainer trainer(settings, *data, cuda_device());
  trainer.step();
  // Rows of other lengths may want other sizes once; then all is there.
  for (int i = 0; i < 10; ++i) trainer.step();
  const emu::Stats before = emu::stats();
  for (int i = 0; i < 2; ++i) trainer.begin_step();
  const emu::Stats begun = emu::stats();
  trainer.finish_steps();
  const emu::Stats finished = emu::stats();
  EXPECT_EQ(begun.pageable_copies, before.pageable_copies);
  EXPECT_EQ(finished.pageable_copies, before.pageable_copies);
  EXPECT_EQ(finished.synchronizations - begun.synchronizations, 1u);
}

}  // namespace
}  // namespace needle
#endif
