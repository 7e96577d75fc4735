// Checkpoints: what is saved comes back, what does not fit is listed whole and changes nothing (BR-050,
// BR-063 to BR-069).
#include "needle/io/checkpoint.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "needle/io/files.h"
#include "needle/io/safetensors.h"
#include "tests/temporary_folder.h"

namespace needle {
namespace {

namespace fs = std::filesystem;

Parameter parameter(const std::string& name, std::vector<float> values,
                    std::vector<std::string> aliases = {}) {
  const auto count = static_cast<std::int64_t>(values.size());
  return {name, Tensor(NDArray::from(values, {count}), true), true, std::move(aliases)};
}

std::vector<float> numbers(const Parameter& parameter) { return parameter.tensor.array().to_vector<float>(); }

/// A module of two vectors.
struct Pair : Module {
  explicit Pair(float first)
      : a(NDArray::from<float>({first, 2}, {2}), true), b(NDArray::from<float>({3}, {1}), true) {}
  Tensor a, b;
  void list(Parts& parts) override { parts("a", a), parts("b", b); }
};

/// The same tensor under two names.
struct Tied : Module {
  Tensor weight{NDArray::zeros({2}), true};
  void list(Parts& parts) override { parts("table", weight), parts("head", weight); }
};

TEST(Checkpoint, ComesBackWhole) {
  const TemporaryFolder folder;
  Pair saved(1), loaded(9);
  Adam optimizer(groups_by_rank(saved.parameters(), 0), AdamDecay::decoupled);
  Adam other(groups_by_rank(loaded.parameters(), 0), AdamDecay::decoupled);
  saved.a.mutable_grad() = NDArray::from<float>({0.5, -1}, {2});
  saved.b.mutable_grad() = NDArray::from<float>({2}, {1});
  optimizer.step(0.1);
  save_checkpoint(folder / "step-1", {{"seed", 7}}, saved, optimizer);
  load_checkpoint(folder / "step-1", loaded, other);
  EXPECT_EQ(load_settings(folder / "step-1"), (nlohmann::json{{"seed", 7}}));
  EXPECT_EQ(loaded.a.array().to_vector<float>(), saved.a.array().to_vector<float>());
  EXPECT_EQ(loaded.b.array().to_vector<float>(), saved.b.array().to_vector<float>());
  for (std::size_t i = 0; i < optimizer.state().size(); ++i)
    EXPECT_EQ(numbers(other.state()[i]), numbers(optimizer.state()[i])) << optimizer.state()[i].name;
}

TEST(Checkpoint, EverythingThatDoesNotFitIsInOneError) {
  const TemporaryFolder folder;
  const fs::path file = folder / "model.safetensors";
  save_tensors(file, {parameter("fits", {1}),
                      parameter("shape", {1, 2}),
                      parameter("unknown", {1}),
                      {"type", Tensor(NDArray::from<std::int64_t>({1}, {1})), true, {}}});
  const std::vector<Parameter> targets{parameter("fits", {5}), parameter("shape", {5}),
                                       parameter("type", {5}), parameter("missing", {5})};
  const std::string message = message_of([&] { load_tensors({{file, targets}}); });
  EXPECT_TRUE(contains(message, file.string()));
  EXPECT_TRUE(contains(message, "shape has shape [2], wanted [1]"));
  EXPECT_TRUE(contains(message, "type has type i64, wanted f32"));
  EXPECT_TRUE(contains(message, "missing missing [1]"));
  EXPECT_TRUE(contains(message, "unknown unknown [1]"));
  for (const Parameter& target : targets) EXPECT_EQ(numbers(target), std::vector<float>{5}) << target.name;
}

TEST(Checkpoint, ADamagedOptimizerLeavesTheModelAlone) {
  const TemporaryFolder folder;
  Pair saved(1), loaded(9);
  Adam optimizer(groups_by_rank(saved.parameters(), 0), AdamDecay::decoupled);
  Sgd other(groups_by_rank(loaded.parameters(), 0), 0.9);
  save_checkpoint(folder / "step-1", {}, saved, optimizer);
  EXPECT_TRUE(
      contains(message_of([&] { load_checkpoint(folder / "step-1", loaded, other); }), "missing velocity.a"));
  EXPECT_EQ(loaded.a.array().item({0}), 9);

  const fs::path file = folder / "step-1/optimizer.safetensors";
  fs::resize_file(file, fs::file_size(file) - 1);
  Adam same(groups_by_rank(loaded.parameters(), 0), AdamDecay::decoupled);
  EXPECT_TRUE(contains(message_of([&] { load_checkpoint(folder / "step-1", loaded, same); }), file.string()));
  EXPECT_EQ(loaded.a.array().item({0}), 9);
}

TEST(Checkpoint, BR050_ATiedTensorIsSavedOnceAndItsAliasMustBeEqual) {
  const TemporaryFolder folder;
  const fs::path file = folder / "model.safetensors";
  Tied model;
  save_tensors(file, model.state());
  EXPECT_EQ(SafetensorsFile(file).names(), std::vector<std::string>{"table"});

  save_tensors(file, {parameter("table", {1, 2}), parameter("head", {1, 2})});
  load_tensors({{file, model.state()}});
  EXPECT_EQ(model.weight.array().to_vector<float>(), (std::vector<float>{1, 2}));

  save_tensors(file, {parameter("table", {3, 4}), parameter("head", {3, 5})});
  EXPECT_TRUE(contains(message_of([&] {
                         load_tensors({{file, model.state()}});
                       }),
                       "head differs from table"));
  EXPECT_EQ(model.weight.array().to_vector<float>(), (std::vector<float>{1, 2}));
}

TEST(Checkpoint, OtherFloatingTypesAreConverted) {
  const TemporaryFolder folder;
  const fs::path file = folder / "model.safetensors";
  const Parameter half{"x", Tensor(NDArray::from<float>({1.5, -2}, {2}).cast(DType::bf16)), true, {}};
  save_tensors(file, {half});
  const Parameter target = parameter("x", {0, 0});
  load_tensors({{file, {target}}});
  EXPECT_EQ(target.tensor.dtype(), DType::f32);
  EXPECT_EQ(numbers(target), (std::vector<float>{1.5, -2}));
}

TEST(Checkpoint, BR069_TheNewestWholeOneIsFoundAndLeftoversAreNot) {
  const TemporaryFolder run;
  EXPECT_TRUE(contains(message_of([&] { find_checkpoint(run.path()); }), "no whole checkpoint"));
  EXPECT_TRUE(contains(message_of([&] { find_checkpoint(run / "nowhere"); }), "no such folder"));
  Pair model(1);
  Sgd optimizer(groups_by_rank(model.parameters(), 0));
  for (const char* name : {"step-9", "step-10", "step-11", "step-x", "best"})
    save_checkpoint(run / name, {}, model, optimizer);
  fs::remove(run / "step-11/model.safetensors");
  fs::copy(run / "step-10", run / ".step-12.partial");
  EXPECT_EQ(find_checkpoint(run.path()), run / "step-10");
  EXPECT_EQ(find_checkpoint(run / "best"), run / "best");
  EXPECT_EQ(checkpoints_of(run.path()), (std::vector<fs::path>{run / "step-9", run / "step-10"}));
}

TEST(Checkpoint, AFailedSaveLeavesThePreviousOne) {
  const TemporaryFolder folder;
  Pair model(1);
  Sgd optimizer(groups_by_rank(model.parameters(), 0));
  save_checkpoint(folder / "best", {{"step", 1}}, model, optimizer);
  Tied doubled;
  nlohmann::json broken = "\xff";  // not UTF-8: it fails after both files of tensors are written
  EXPECT_ANY_THROW(save_checkpoint(folder / "best", broken, doubled, optimizer));
  EXPECT_EQ(load_settings(folder / "best"), (nlohmann::json{{"step", 1}}));
  load_checkpoint(folder / "best", model);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

}  // namespace
}  // namespace needle
