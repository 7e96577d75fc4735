// Training on the CUDA backend: launches and waits of a step, recorded steps, 16 bits and their loss scale.
#include "tests/decoders.h"
#include "tests/on_devices.h"

#ifdef NEEDLE_TESTS_EMULATE
#include <fstream>

#include "needle/train/training.h"
#include "tests/agree.h"
#include "tests/cuda_device.h"
#include "tests/temporary_folder.h"

namespace needle {
namespace {

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
