// What `needle inside` shows agrees with the engine: sums, memory, numbers followed to the loss, definitions.
#include "needle/inspect/inside.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "needle/counters.h"
#include "needle/inspect/boundary.h"
#include "needle/inspect/op_sources.h"
#include "needle/inspect/op_table.h"
#include "needle/inspect/tape_levels.h"
#include "needle/io/files.h"
#include "needle/node.h"
#include "needle/ops/ops.h"
#include "needle/optim/optimizer.h"
#include "tests/temporary_folder.h"
#include "tests/token_models.h"

namespace needle {
namespace {

/// Models of every kind, on every device.
std::vector<NamedModel> shown_models() {
  std::vector<NamedModel> models = various_models();
  for (const auto& [name, kind] : {std::pair{"decoder", ModelKind::decoder},
                                   {"encoder", ModelKind::encoder},
                                   {"encoder-decoder", ModelKind::encoder_decoder}})
    models.push_back(changed_model(name, kind, [](ModelConfig& c) { c.width = 8, c.heads = 2; }));
  models.push_back(changed_model("rotary decoder", ModelKind::decoder, [](ModelConfig& c) {
    c.width = 8, c.heads = 2, c.key_value_heads = 1, c.positions = Positions::rotary, c.norm = NormKind::rms;
    c.activation = Activation::gated, c.dropout = 0.1, c.tied = false;
  }));
  return models;
}

/// A model with a batch, and its loss.
struct Scene {
  Scene(const ModelConfig& config, Device device, DType dtype) : model(make_named(config, device, dtype)) {
    Generator random(5);
    input = random_input(model->config(), 7, random, device, 2);
    labels =
        NDArray::from(std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5}, {2, 7}, device);
  }
  Tensor loss() {
    Generator draws(6);
    return model->loss(input, labels, {}, {true, &draws});
  }
  NDArrays batch() const {
    NDArrays arrays{input.ids, labels};
    if (input.source_ids.defined()) arrays.push_back(input.source_ids);
    return arrays;
  }
  std::unique_ptr<SequenceModel> model;
  SequenceInput input;
  NDArray labels;
};

class InsideTest : public testing::TestWithParam<std::tuple<Device, NamedModel>> {
 protected:
  Device device() const { return std::get<0>(GetParam()); }
  Scene scene(DType dtype) const { return Scene(std::get<1>(GetParam()).config, device(), dtype); }
};
INSTANTIATE_TEST_SUITE_P(All, InsideTest, testing::ValuesIn(on_all_devices(shown_models())),
                         model_and_device);

TEST_P(InsideTest, SumsAreThoseOfTheCounterAndOfTheMemory) {
  Scene its = scene(DType::f32);
  OperationCounter counter;
  {
    const ObserverScope scope(&counter);
    its.loss().backward();
  }
  its.model->clear_gradients();

  TapeWatch watch(device(), its.model->parameters(), {{"batch", its.batch()}});
  const std::size_t before = device()->memory_stats().live;
  Tensor loss;
  std::size_t after_forward = 0;
  {
    const ObserverScope scope(&watch);
    loss = its.loss();
    after_forward = device()->memory_stats().live;
    loss.backward();
  }
  const std::size_t after = device()->memory_stats().live;
  const Tape tape = watch.finish();

  OpTally forward, backward;
  std::size_t gradients = 0;
  for (const TapeOp& op : tape.ops) {
    forward += {1, op.operations, op.bytes_read, op.bytes_written, op.kept_bytes};
    backward += {0, op.backward_operations, op.backward_bytes, 0, 0};
  }
  for (const Parameter& parameter : its.model->parameters()) gradients += parameter.tensor.grad().bytes();
  const OpTally counted = counter.sum(Phase::forward), counted_back = counter.sum(Phase::backward);
  EXPECT_EQ(forward.calls, counted.calls);
  EXPECT_EQ(forward.operations, counted.operations);
  EXPECT_EQ(forward.bytes_read, counted.bytes_read);
  EXPECT_EQ(forward.bytes_written, counted.bytes_written);
  double held = 0;  // what the ops hold of the batch is there without them
  for (const NDArray& array : its.batch()) held += static_cast<double>(array.bytes());
  EXPECT_EQ(forward.bytes_kept, counted.bytes_kept - held);
  EXPECT_EQ(backward.operations, counted_back.operations);
  EXPECT_EQ(backward.bytes_read, counted_back.bytes_read + counted_back.bytes_written);

  // To the byte: what the graph keeps and the loss itself, then nothing but gradients and the loss.
  EXPECT_EQ(tape.live_after_forward, after_forward);
  EXPECT_EQ(after_forward - before, static_cast<std::size_t>(forward.bytes_kept) + loss.array().bytes());
  EXPECT_EQ(after - before, gradients + loss.array().bytes());
  for (const TapeOp& op : tape.ops) {
    EXPECT_TRUE(op.kept_bytes == 0 || op.kept_until >= 0) << op.op;
  }
  std::size_t most = 0, named = 0;
  for (const TapeEvent& event : tape.events) most = std::max(most, event.live);
  for (const MemoryShare& share : tape.peak) named += share.bytes;
  EXPECT_EQ(tape.peak_bytes(), most);
  EXPECT_EQ(named, most);
}

TEST_P(InsideTest, WatchingTakesNoMemory) {
  Scene its = scene(DType::f32);
  const auto peak_of = [&](Observer* observer) {
    its.model->clear_gradients();
    device()->trim_memory();
    const std::size_t before = device()->memory_stats().live;
    const ObserverScope scope(observer);
    its.loss().backward();
    return device()->memory_stats().peak - before;
  };
  peak_of(nullptr);
  TapeWatch watch(device(), its.model->parameters());
  const std::size_t watched = peak_of(&watch);
  EXPECT_EQ(watched, peak_of(nullptr));
}

TEST_P(InsideTest, EveryOpStandsInOneLevelAndEveryEdgeJoinsBoxes) {
  Scene its = scene(DType::f32);
  TapeWatch watch(device(), its.model->parameters());
  {
    const ObserverScope scope(&watch);
    its.loss();
  }
  const Tape tape = watch.finish();
  std::vector<Level> levels = levels_of(tape);
  std::multiset<int> ops;
  for (const Level& level : levels) {
    for (const LevelNode& node : level.nodes) {
      if (node.kind == LevelNode::Kind::op) ops.insert(node.number);
      if (node.kind == LevelNode::Kind::module) {
        EXPECT_EQ(&levels[static_cast<std::size_t>(levels[static_cast<std::size_t>(node.number)].parent)],
                  &level);
      }
    }
    for (const LevelEdge& edge : level.edges) {
      EXPECT_LT(std::max(edge.from, edge.to), static_cast<int>(level.nodes.size()));
      EXPECT_NE(edge.from, edge.to);
    }
  }
  EXPECT_EQ(ops.size(), tape.ops.size());
  EXPECT_EQ(std::set<int>(ops.begin(), ops.end()).size(), ops.size());
  EXPECT_THROW(levels_of(tape, "blocks.17"), Error);
  EXPECT_THROW(levels_of(tape, {}, 1), Error);
}

/// Only in float64, which the CPU alone has.
class InsideNumbersTest : public testing::TestWithParam<std::tuple<Device, NamedModel>> {};
std::vector<std::tuple<Device, NamedModel>> models_on_the_cpu() {
  std::vector<std::tuple<Device, NamedModel>> all;
  for (const NamedModel& model : shown_models()) all.emplace_back(cpu(), model);
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, InsideNumbersTest, testing::ValuesIn(models_on_the_cpu()), model_and_device);

TEST_P(InsideNumbersTest, AreSumsOfProductsAndAgreeWithFiniteDifferences) {
  for (const int order : {1, 2}) {
    Scene its(std::get<1>(GetParam()).config, cpu(), DType::f64);
    TapeWatch watch(cpu(), its.model->parameters());
    ArrayKeeper keeper;
    const auto start = [&] {
      const Tensor loss = its.loss();
      if (order == 1) return loss;
      Tensor total;
      std::vector<Tensor> weights;
      for (const Parameter& parameter : its.model->parameters()) weights.push_back(parameter.tensor);
      for (const Tensor& gradient : gradients(loss, weights, {}, true)) {
        const Tensor part = sum(gradient * gradient) * 0.5;
        total = total.defined() ? total + part : part;
      }
      return total;
    };
    {
      const ObserverScope scope(&watch);
      gradients(start(), {its.model->parameters().front().tensor});
    }
    Tensor loss;
    {
      const ObserverScope scope(&keeper);
      loss = start();
    }
    const Tape tape = watch.finish();
    const TapeValues values(tape, loss, &keeper);
    const FollowedNumbers followed =
        follow(tape, values, entries_worth_following(tape, values, order == 1 ? 6 : 2));
    EXPECT_GE(followed.numbers.size(), 3u);
    for (const ChainStep& step : followed.chain) {
      if (step.tensor == values.loss()) {
        EXPECT_EQ(step.gradient, 1);
        continue;
      }
      double sum = step.rest_sum, size = std::abs(step.rest_sum);
      for (const ChainStep::Part& part : step.parts) sum += part.product(), size += std::abs(part.product());
      EXPECT_NEAR(sum, step.gradient, 1e-9 * std::max(size, std::abs(step.gradient)))
          << tape.tensors[static_cast<std::size_t>(step.tensor)].name;
    }
    double largest = 0;
    for (const FollowedNumber& number : followed.numbers)
      largest = std::max(largest, std::abs(number.gradient));
    for (const FollowedNumber& number : followed.numbers) {
      ASSERT_TRUE(number.finite_difference.has_value());
      EXPECT_NEAR(*number.finite_difference, number.gradient, 1e-6 * largest)
          << tape.tensors[static_cast<std::size_t>(number.tensor)].name << ", order " << order;
    }
  }
}

TEST_P(InsideNumbersTest, FusedOpsAgreeWithTheirDefinitions) {
  Scene its(std::get<1>(GetParam()).config, cpu(), DType::f64);
  TapeWatch watch(cpu(), its.model->parameters());
  watch.adopt(nodes_of(its.loss()));
  ArrayKeeper keeper;
  const Tensor loss = its.loss();
  const Tape tape = watch.finish();
  const TapeValues values(tape, loss);
  int fused = 0;
  for (int i = 0; i < static_cast<int>(tape.ops.size()); ++i) {
    const auto definition = definition_of(tape, values, i);
    if (!definition) continue;
    ++fused;
    EXPECT_LE(definition->relative, 1e-9) << tape.ops[static_cast<std::size_t>(i)].op;
    EXPECT_FALSE(definition->tape.ops.empty());
  }
  EXPECT_GE(fused, 3);
}

TEST(InsideRecord, TellsAllOfItAsJsonAndOnAPage) {
  Scene its(changed_model("", ModelKind::decoder, [](ModelConfig& c) { c.width = 8, c.heads = 2; }).config,
            cpu(), DType::f64);
  const Tensor loss = its.loss();
  const TemporaryFolder folder;
  record(loss, (folder / "inside.html").string(), its.model->parameters());
  const std::string page = read_file(folder / "inside.html");
  const std::string opening = "id=\"record\">";
  const std::size_t begin = page.find(opening) + opening.size(), end = page.find("</script>", begin);
  ASSERT_NE(end, std::string::npos);
  const nlohmann::json shown = nlohmann::json::parse(page.substr(begin, end - begin));
  EXPECT_EQ(shown.at("totals").at("loss"), loss.item());
  std::int64_t boxes = 0, placed = 0;
  for (const auto& level : shown.at("levels")) {
    for (const auto& node : level.at("nodes")) ++boxes, placed += node.at("x").get<double>() > 0;
  }
  EXPECT_GT(boxes, 50);
  EXPECT_EQ(placed, boxes);
  for (const auto& op : shown.at("ops")) {
    EXPECT_FALSE(shown.at("sources").at(op.at("op").get<std::string>()).at("places").empty()) << op.at("op");
    EXPECT_TRUE(op.at("definition").is_null() || op.at("definition").at("relative") < 1e-9);
  }
  // The numbers are the engine's.
  const std::vector<Parameter> parameters = its.model->parameters();
  for (const auto& number : shown.at("numbers")) {
    const auto& tensor = shown.at("tensors").at(number.at("tensor").get<std::size_t>());
    const auto found = std::ranges::find(parameters, tensor.at("name").get<std::string>(), &Parameter::name);
    if (found == parameters.end()) continue;
    NDArray gradient = gradients(loss, {found->tensor})[0].array(), value = found->tensor.array();
    for (const auto& index : number.at("index"))
      gradient = gradient[index.get<std::int64_t>()], value = value[index.get<std::int64_t>()];
    EXPECT_NEAR(number.at("gradient").get<double>(), gradient.item(), 1e-12);
    EXPECT_EQ(number.at("value").get<double>(), value.item());
    EXPECT_NEAR(number.at("difference").get<double>(), 0, 1e-6 * std::max(1e-2, std::abs(gradient.item())));
  }
  EXPECT_FALSE(parameters.front().tensor.grad().defined());  // untouched
  EXPECT_THROW(record(Tensor(NDArray::zeros({}))), Error);
  EXPECT_GT(shown.at("ops").at(0).at("operations"), 0);
  EXPECT_GT(shown.at("totals").at("forward_seconds").get<double>() +
                shown.at("ops").at(0).at("forward_seconds").get<double>(),
            0);
  EXPECT_GT(shown.at("ops").at(0).at("bytes_read"), 0);
  EXPECT_GT(shown.at("totals").at("kept_bytes"), 0);
  loss.backward();
  EXPECT_THROW(record(loss), Error);  // the graph is gone
}

TEST(InsideRecord, ALargeDefinitionHasNoPictureButADifference) {
  Scene its(changed_model("", ModelKind::lstm, [](ModelConfig& c) { c.layers = 1; }).config, cpu(),
            DType::f64);
  Generator random(1);
  its.input = random_input(its.model->config(), 40, random, cpu());
  its.labels = NDArray::zeros({1, 40}, DType::i64);
  TapeWatch watch(cpu(), its.model->parameters());
  const Tensor loss = its.loss();
  watch.adopt(nodes_of(loss));
  const Tape tape = watch.finish();
  const TapeValues values(tape, loss);
  const nlohmann::json shown = inside_json(tape, &values, "", {});
  const auto recurrence =
      std::ranges::find_if(shown.at("ops"), [](const auto& op) { return op.at("op") == "recurrence"; });
  ASSERT_NE(recurrence, shown.at("ops").end());
  EXPECT_TRUE(recurrence->at("definition").at("level").is_null());
  EXPECT_LT(recurrence->at("definition").at("relative"), 1e-9);
}

TEST(InsideRecord, SaysWhatCannotBeComputedAgain) {
  // The graph of a sum keeps nothing of its terms: where both are mere inputs, only the constant is gone.
  const Tensor x(NDArray::ones({3}), true);
  const Tensor loss = sum(exp(x + Tensor(NDArray::ones({3}))));
  TapeWatch watch(cpu());
  watch.adopt(nodes_of(loss));
  const Tape tape = watch.finish();
  const TapeValues values(tape, loss);
  EXPECT_FALSE(values.value(tape.ops[0].inputs[1]).defined());
  EXPECT_FALSE(values.value(tape.ops[0].outputs[0]).defined());
  EXPECT_TRUE(values.value(tape.ops[1].outputs[0]).defined());  // exp keeps its output
  EXPECT_FALSE(values.finite_difference(tape.ops[0].inputs[0], 0).has_value());
  const nlohmann::json shown = inside_json(tape, &values, "", {});
  EXPECT_NE(shown.at("tensors").at(static_cast<std::size_t>(tape.ops[0].outputs[0])).at("unknown"), "");
  EXPECT_TRUE(shown.at("numbers").back().at("finite_difference").is_null());
}

TEST(InsideRecord, KnowsTheSourcesOfEveryOp) {
  std::set<std::string> seen;
  for (const OpCase& op : op_table()) {
    Tensors inputs;
    for (const NDArray& input : inputs_of(op, cpu())) inputs.emplace_back(input, true);
    for (const std::shared_ptr<Node>& node : nodes_of(op.function(inputs))) seen.insert(node->op->name());
  }
  EXPECT_GT(seen.size(), 40u);
  const std::set<std::string> views{"broadcast_to", "checkpoint", "flip",  "identity",
                                    "permute",      "reshape",    "slice", "split"};
  for (const std::string& op : seen) {
    bool computes = false, has_kernel = views.contains(op);
    for (const OpSource& source : sources_of(op)) {
      computes |= std::string(source.what) == "compute";
      has_kernel |=
          std::string(source.what).starts_with("kernel") || std::string(source.what).starts_with("functor");
      EXPECT_GT(source.line, 0);
      EXPECT_NE(std::string(source.text), "");
    }
    EXPECT_TRUE(computes && has_kernel) << op;
  }
}

}  // namespace
}  // namespace needle
