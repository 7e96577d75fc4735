// Training: accumulation, evaluation, skipped steps, going on exactly where a run stopped, and its folder.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "needle/anomaly.h"
#include "needle/io/checkpoint.h"
#include "needle/io/files.h"
#include "needle/train/training.h"
#include "tests/on_devices.h"
#include "tests/temporary_folder.h"

namespace needle {
namespace {

namespace fs = std::filesystem;

TrainSettings small_settings() {
  TrainSettings settings;
  settings.model.context = 8;
  settings.model.width = 8;
  settings.model.layers = 2;
  settings.model.heads = 2;
  settings.steps = 10;
  settings.batch = 4;
  settings.warmup = 2;
  settings.evaluate_every = 3;
  settings.save_every = 4;
  return settings;
}

DatasetSettings letters() {
  DatasetSettings settings;
  settings.tokenizer = Tokenizer::characters("abcde");
  settings.format.context = 8;
  settings.name = "letters";
  return settings;
}

/// Rows of 0 to 6 letters, drawn from a seed.
std::unique_ptr<Dataset> small_data(std::uint64_t seed = 1) {
  Generator random(seed);
  std::vector<TokenRow> rows(50);
  for (TokenRow& row : rows) {
    for (std::int64_t left = random.below(7); left > 0; --left)
      row.push_back(kFirstContentId + random.below(5));
  }
  const std::vector<TokenRow> validation(rows.begin(), rows.begin() + 11);
  return std::make_unique<RowsDataset>(rows, validation, letters());
}

/// Data without any target, and later data with some.
class SilentData : public RowsDataset {
 public:
  SilentData() : RowsDataset({{3}}, {{3}}, letters()) {}
  Batch next_training_batch(DataPosition& position, std::int64_t size) override {
    Batch batch = RowsDataset::next_training_batch(position, size);
    if (position.examples_seen > 3 * size) return batch;
    std::fill(batch.labels.begin(), batch.labels.end(), -100);
    batch.valid_targets = 0;
    return batch;
  }
};

std::vector<std::vector<float>> numbers(const std::vector<Parameter>& parameters) {
  std::vector<std::vector<float>> all;
  for (const Parameter& parameter : parameters) all.push_back(parameter.tensor.array().to_vector<float>());
  return all;
}

std::vector<double> losses_of(Trainer& trainer, int steps) {
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) losses.push_back(trainer.step().loss);
  return losses;
}

class TrainTest : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(All, TrainTest, testing::ValuesIn(all_devices()), device_name);
class AnomalyTest : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(All, AnomalyTest, testing::ValuesIn(all_devices()), device_name);

TEST_P(TrainTest, BR052_ARunThatGoesOnIsBitIdenticalToOneThatNeverStopped) {
  const std::unique_ptr<Dataset> data = small_data();
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::adam, OptimizerKind::sgd}) {
    TrainSettings settings = small_settings();
    settings.optimizer = kind;
    settings.model.dropout = 0.2;
    settings.accumulate = 2;
    settings.label_smoothing = 0.1;
    Trainer whole(settings, *data, device()), first(settings, *data, device());
    const std::vector<double> expected = losses_of(whole, 10);
    std::vector<double> losses = losses_of(first, 4);
    const TemporaryFolder folder;
    first.evaluate();
    first.save(folder / "step-4");

    TrainSettings restored = load_saved_run(folder / "step-4").settings;
    const std::unique_ptr<Dataset> again = small_data();
    Trainer second(restored, *again, device());
    second.load(folder / "step-4");
    EXPECT_EQ(second.best_validation(), first.best_validation());
    for (const double loss : losses_of(second, 6)) losses.push_back(loss);
    EXPECT_EQ(losses, expected);
    EXPECT_EQ(numbers(second.model().state()), numbers(whole.model().state()));
    EXPECT_EQ(second.optimizer().steps(), 10);
  }
}

TEST_P(TrainTest, S15_AccumulationIsTheSameStepAsOneLargeBatch) {
  const std::unique_ptr<Dataset> data = small_data();
  TrainSettings settings = small_settings();
  settings.optimizer = OptimizerKind::sgd;
  settings.batch = 12;
  Trainer large(settings, *data, device());
  settings.batch = 2;
  settings.accumulate = 6;
  Trainer parts(settings, *data, device());
  for (int step = 0; step < 3; ++step) {
    const StepResult a = large.step(), b = parts.step();
    EXPECT_NEAR(a.loss, b.loss, 1e-6);
    EXPECT_NEAR(a.gradient_norm, b.gradient_norm, 1e-5);
    EXPECT_EQ(a.tokens, b.tokens);
  }
  const auto a = numbers(large.model().parameters()), b = numbers(parts.model().parameters());
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < a[i].size(); ++j) ASSERT_NEAR(a[i][j], b[i][j], 1e-6);
  }
}

TEST_P(TrainTest, BR018_AnEvaluationDoesNotDependOnItsBatches) {
  const std::unique_ptr<Dataset> data = small_data();
  Trainer trainer(small_settings(), *data, device());
  const Evaluation all = evaluate(trainer.model(), data->validation_batches(11), device());
  for (const std::int64_t size : {1, 2, 3, 7}) {
    const Evaluation parts = evaluate(trainer.model(), data->validation_batches(size), device());
    EXPECT_EQ(parts.targets, all.targets);
    EXPECT_NEAR(parts.loss, all.loss, 1e-6) << size;
  }
}

TEST_P(TrainTest, S15_ABatchWithoutTargetsChangesNothing) {
  SilentData data;
  Trainer trainer(small_settings(), data, device());
  const auto before = numbers(trainer.model().parameters());
  for (int i = 0; i < 3; ++i) {
    const StepResult silent = trainer.step();
    EXPECT_EQ(silent.skipped, "no target of the batch counts");
    EXPECT_EQ(silent.loss, 0);
  }
  EXPECT_EQ(numbers(trainer.model().parameters()), before);
  EXPECT_EQ(trainer.optimizer().steps(), 0);
  EXPECT_EQ(trainer.steps_done(), 3);
  EXPECT_EQ(trainer.step().skipped, "");
  EXPECT_NE(numbers(trainer.model().parameters()), before);
}

TEST_P(TrainTest, AGradientThatIsNotFiniteIsSkippedAndNamed) {
  const std::unique_ptr<Dataset> data = small_data();
  Trainer trainer(small_settings(), *data, device());
  trainer.step();
  Parameter last = trainer.model().parameters().back();
  last.tensor.set_array(
      NDArray::full(last.tensor.shape(), std::numeric_limits<double>::infinity(), DType::f32, device()));
  const auto before = numbers(trainer.model().parameters());
  const StepResult result = trainer.step();
  EXPECT_TRUE(contains(result.skipped, "is not finite"));
  EXPECT_TRUE(contains(result.skipped, trainer.model().parameters().front().name));
  EXPECT_EQ(numbers(trainer.model().parameters()), before);
  EXPECT_EQ(trainer.optimizer().steps(), 1);
}

TEST_P(TrainTest, ARehearsalLeavesNoTrace) {
  const std::unique_ptr<Dataset> data = small_data();
  TrainSettings settings = small_settings();
  settings.model.dropout = 0.3;
  Trainer plain(settings, *data, device()), rehearsed(settings, *data, device());
  EXPECT_GT(rehearsed.rehearse_step().seconds, 0);
  EXPECT_EQ(rehearsed.steps_done(), 0);
  EXPECT_EQ(losses_of(plain, 3), losses_of(rehearsed, 3));
}

TEST_P(TrainTest, OtherDataOrAnotherModelIsRefusedBeforeAnythingChanges) {
  const TemporaryFolder folder;
  const std::unique_ptr<Dataset> data = small_data(), other = small_data(2);
  Trainer trainer(small_settings(), *data, device());
  trainer.step();
  trainer.save(folder / "step-1");
  Trainer elsewhere(small_settings(), *other, device());
  EXPECT_TRUE(contains(message_of([&] { elsewhere.load(folder / "step-1"); }), "other data"));
  TrainSettings wider = small_settings();
  wider.model.width = 12;
  Trainer wide(wider, *data, device());
  const auto before = numbers(wide.model().parameters());
  EXPECT_TRUE(contains(message_of([&] { wide.load(folder / "step-1"); }), "has shape"));
  EXPECT_EQ(numbers(wide.model().parameters()), before);
  EXPECT_EQ(wide.steps_done(), 0);
}

TEST_P(TrainTest, ImpossibleSettingsAreNamed) {
  const std::unique_ptr<Dataset> data = small_data();
  const auto message = [&](auto change) {
    TrainSettings settings = small_settings();
    change(settings);
    return message_of([&] { Trainer(settings, *data, device()); });
  };
  EXPECT_TRUE(contains(message([](TrainSettings& s) { s.batch = 0; }), "batch"));
  EXPECT_TRUE(contains(message([](TrainSettings& s) { s.learning_rate = std::nan(""); }), "learning-rate"));
  EXPECT_TRUE(contains(message([](TrainSettings& s) { s.label_smoothing = 2; }), "label-smoothing"));
  EXPECT_TRUE(contains(message([](TrainSettings& s) { s.beta2 = 1; }), "betas"));
  EXPECT_TRUE(
      contains(message([](TrainSettings& s) { s.clip = std::numeric_limits<double>::infinity(); }), "clip"));
  EXPECT_TRUE(contains(
      message([](TrainSettings& s) { s.model.rotary_base = std::numeric_limits<double>::infinity(); }),
      "rotary base"));
  EXPECT_TRUE(contains(message([](TrainSettings& s) { s.data.file = "\xff.txt"; }), "UTF-8"));
  EXPECT_TRUE(contains(message([](TrainSettings& s) { s.model.heads = 3; }), "heads"));
}

/// losses.csv without its last column, the speed.
std::string losses_without_speed(const fs::path& file) {
  std::ifstream lines(file);
  std::string text, line;
  while (std::getline(lines, line)) text += line.substr(0, line.rfind(',')) + '\n';
  return text;
}

TEST_P(TrainTest, AStoppedRunGoesOnWithTheSameLosses) {
  const std::unique_ptr<Dataset> data = small_data();
  const TemporaryFolder folder;
  Trainer whole(small_settings(), *data, device()), first(small_settings(), *data, device()),
      second(small_settings(), *data, device());
  RunFolder straight = RunFolder::create(folder / "straight");
  EXPECT_TRUE(train(whole, straight));
  EXPECT_EQ(checkpoints_of(straight.path()), std::vector<fs::path>{straight.checkpoint(10)});
  EXPECT_TRUE(fs::exists(straight.best() / kModelFile));

  RunFolder stopped = RunFolder::create(folder / "stopped");
  EXPECT_FALSE(train(first, stopped, {.on_step = {}, .stop = [&] { return first.steps_done() >= 5; }}));
  const std::int64_t last = first.steps_done();  // a device that runs ahead is asked less often
  EXPECT_LT(last, 10);
  EXPECT_EQ(find_checkpoint(stopped.path()), stopped.checkpoint(last));
  // What a crash after the checkpoint could leave: a later row, and half a row.
  std::ofstream(stopped.losses_file(), std::ios::app) << last + 1 << ",1,,1,1,1\n" << last + 2 << ",1";
  second.load(stopped.checkpoint(last));
  { const RunFolder closed = std::move(stopped); }

  RunFolder reopened = RunFolder::reopen(folder / "stopped", second.steps_done());
  EXPECT_TRUE(train(second, reopened));
  EXPECT_EQ(losses_without_speed(reopened.losses_file()), losses_without_speed(straight.losses_file()));
  EXPECT_EQ(read_file(reopened.checkpoint(10) / kModelFile), read_file(straight.checkpoint(10) / kModelFile));
  EXPECT_EQ(read_file(reopened.best() / kModelFile), read_file(straight.best() / kModelFile));
}

TEST_P(TrainTest, ARunIsNotOverwrittenUnlessAsked) {
  const std::unique_ptr<Dataset> data = small_data();
  const TemporaryFolder folder;
  Trainer trainer(small_settings(), *data, device());
  RunFolder run = RunFolder::create(folder / "run");
  run.save(trainer);
  const fs::path checkpoint = run.checkpoint(0);
  { const RunFolder closed = std::move(run); }
  EXPECT_TRUE(contains(message_of([&] { RunFolder::create(folder / "run"); }), "holds a run already"));
  EXPECT_TRUE(fs::exists(checkpoint));
  RunFolder::create(folder / "run", true);
  EXPECT_FALSE(fs::exists(checkpoint));
}

TEST_P(AnomalyTest, TheFirstBadOpIsNamedWithItsModule) {
  const std::unique_ptr<Dataset> data = small_data();
  Trainer trainer(small_settings(), *data, device());
  AnomalyDetector detector;
  const ObserverScope watch(&detector);
  EXPECT_EQ(message_of([&] { trainer.step(); }), "(no error)");
  for (Parameter parameter : trainer.model().parameters()) {
    if (parameter.name == "blocks.1.ffn.up.weight")
      parameter.tensor.set_array(NDArray::full(parameter.tensor.shape(), 3e38, DType::f32, device()));
  }
  const std::string message = message_of([&] { trainer.step(); });
  EXPECT_TRUE(contains(message, "(forward) in blocks.1.ffn.up"));
  EXPECT_TRUE(contains(message, "[8, 32]"));
}

TEST(Anomaly, ABadGradientIsNamedAsBackward) {
  AnomalyDetector detector;
  const ObserverScope watch(&detector);
  const Tensor x(NDArray::from<float>({0, 1}, {2}), true);
  const Tensor loss = sum(sqrt(x));
  EXPECT_TRUE(contains(message_of([&] { loss.backward(); }), "sqrt (backward)"));
  EXPECT_EQ(message_of([&] { log(Tensor(NDArray::full({2}, 1))); }), "(no error)");
  EXPECT_TRUE(contains(message_of([&] { log(Tensor(NDArray::full({2}, -1))); }), "log (forward)"));
}

TEST_P(TrainTest, AnEarlierCheckpointDoesNotReplaceALaterOne) {
  const std::unique_ptr<Dataset> data = small_data();
  const TemporaryFolder folder;
  {
    Trainer trainer(small_settings(), *data, device());
    RunFolder run = RunFolder::create(folder / "run");
    EXPECT_TRUE(train(trainer, run));
  }
  EXPECT_TRUE(contains(message_of([&] { RunFolder::reopen(folder / "run", 3); }), "step-10"));
  RunFolder branch = RunFolder::branch(folder / "run", folder / "branch", 3);
  EXPECT_EQ(branch.losses().size(), 3u);
  EXPECT_EQ(RunFolder::reopen(folder / "run", 10).losses().size(), 10u);
}

TEST(Train, ARunInUseIsLeftAlone) {
  const TemporaryFolder folder;
  const RunFolder run = RunFolder::create(folder / "run");
  EXPECT_TRUE(contains(message_of([&] { RunFolder::create(folder / "run", true); }), "in use"));
  EXPECT_TRUE(contains(message_of([&] { RunFolder::reopen(folder / "run", 0); }), "in use"));
}

TEST(Train, OverwritingRemovesCheckpointsAlone) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "run/best");
  std::ofstream(folder / "run/best/photo") << "mine";
  std::ofstream(folder / "run/losses.csv") << "mine too";
  RunFolder::create(folder / "run", true);
  EXPECT_TRUE(fs::exists(folder / "run/best/photo"));
}

TEST(TrainSettings, RunsOfBeforeThereWereOtherPrecisionsAreFloat32) {
  nlohmann::json json = small_settings();
  EXPECT_EQ(json.at("precision"), "f32");
  json.erase("precision");
  EXPECT_EQ(json.get<TrainSettings>().precision, DType::f32);
  json["precision"] = "f64";
  EXPECT_THROW(json.get<TrainSettings>(), Error);
}

}  // namespace
}  // namespace needle
