#include "needle/inspect/inside.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "needle/inspect/array_summary.h"
#include "needle/inspect/op_sources.h"
#include "needle/inspect/tape_levels.h"

namespace needle {

namespace {

using nlohmann::json;

std::size_t at(int number) { return static_cast<std::size_t>(number); }

std::vector<std::int64_t> sizes_of(const Shape& shape) { return {shape.begin(), shape.end()}; }

json or_null(int number) { return number < 0 ? json(nullptr) : json(number); }

std::vector<std::int64_t> index_of(std::int64_t entry, const Shape& shape) {
  std::vector<std::int64_t> index(static_cast<std::size_t>(shape.rank()));
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    index[at(axis)] = entry % shape[axis];
    entry /= shape[axis];
  }
  return index;
}

json tensors_json(const Tape& tape, const TapeValues* values, const std::string& unknown) {
  constexpr const char* kKinds[] = {"parameter", "constant", "value"};
  // Where there are many, their pictures are smaller.
  constexpr std::size_t kMany = 400;
  const std::int64_t cells = tape.tensors.size() > kMany ? 300 : 48 * 64;
  json tensors = json::array();
  for (int i = 0; i < static_cast<int>(tape.tensors.size()); ++i) {
    const TapeTensor& tensor = tape.tensors[at(i)];
    json object{{"name", tensor.name},
                {"kind", kKinds[static_cast<int>(tensor.kind)]},
                {"shape", sizes_of(tensor.shape)},
                {"dtype", name_of(tensor.dtype)},
                {"bytes", tensor.bytes},
                {"value", nullptr},
                {"gradient", nullptr}};
    if (values && values->value(i).defined())
      object["value"] = summary_of(values->value(i), cells);
    else
      object["unknown"] =
          values ? "nothing kept it, and it cannot be computed again from what was kept" : unknown;
    if (values && values->gradient(i).defined()) object["gradient"] = summary_of(values->gradient(i), cells);
    tensors.push_back(std::move(object));
  }
  return tensors;
}

json shares_json(const std::vector<MemoryShare>& shares) {
  json rows = json::array();
  for (const MemoryShare& share : shares) rows.push_back({{"what", share.what}, {"bytes", share.bytes}});
  return rows;
}

json op_json(const TapeOp& op) {
  return {{"op", op.op},
          {"kept", shares_json(op.kept)},
          {"module", op.path},
          {"inputs", op.inputs},
          {"outputs", op.outputs},
          {"operations", op.operations},
          {"bytes_read", op.bytes_read},
          {"bytes_written", op.bytes_written},
          {"backward_operations", op.backward_operations},
          {"backward_bytes", op.backward_bytes},
          {"kept_bytes", op.kept_bytes},
          {"kept_until", or_null(op.kept_until)},
          {"recorded", op.recorded},
          {"forward_seconds", op.forward_seconds},
          {"backward_seconds", op.backward_seconds},
          {"consumers", op.consumers},
          {"definition", nullptr}};
}

/// Of the ops in a module and below.
json module_sums(const Tape& tape, const std::string& path) {
  double forward = 0, backward = 0, operations = 0, kept = 0;
  std::int64_t ops = 0, parameters = 0;
  for (const TapeOp& op : tape.ops) {
    if (!path.empty() && op.path != path && !op.path.starts_with(path + '.')) continue;
    forward += op.forward_seconds;
    backward += op.backward_seconds;
    operations += op.operations;
    kept += op.kept_bytes;
    ++ops;
  }
  for (const TapeTensor& tensor : tape.tensors) {
    if (tensor.kind == TapeTensor::Kind::parameter && (path.empty() || tensor.name.starts_with(path + '.')))
      parameters += tensor.shape.count();
  }
  return {{"forward_seconds", forward},
          {"backward_seconds", backward},
          {"operations", operations},
          {"kept_bytes", kept},
          {"ops", ops},
          {"parameters", parameters}};
}

/// `ops_before`: how many ops of other definitions stand before those of this tape; -1: it is the step
/// itself.
json level_json(const Level& level, const Tape& tape, const std::vector<Level>& levels, int levels_before,
                int ops_before, const std::string& title) {
  constexpr const char* kKinds[] = {"module", "op", "tensor", "port"};
  json nodes = json::array(), edges = json::array();
  for (const LevelNode& node : level.nodes) {
    json object{{"kind", kKinds[static_cast<int>(node.kind)]},
                {"label", node.label},
                {"rank", node.rank},
                {"x", node.x},
                {"width", node.width},
                {"height", node.height}};
    switch (node.kind) {
      case LevelNode::Kind::module:
        object.update(module_sums(tape, levels[at(node.number)].path));
        object["level"] = levels_before + node.number;
        break;
      case LevelNode::Kind::op:
        object["op"] = std::max(ops_before, 0) + node.number;
        break;
      default:
        object["tensor"] = ops_before < 0 ? json(node.number) : json(nullptr);
    }
    nodes.push_back(std::move(object));
  }
  for (const LevelEdge& edge : level.edges)
    edges.push_back({{"from", edge.from},
                     {"to", edge.to},
                     {"tensor", ops_before < 0 ? json(edge.tensor) : json(nullptr)},
                     {"label", text_of(tape.tensors[at(edge.tensor)].shape)},
                     {"bends", edge.bends}});
  return {{"module", level.path}, {"title", title}, {"parent", or_null(level.parent)},
          {"ranks", level.ranks}, {"nodes", nodes}, {"edges", edges}};
}

/// Fills in "levels", and puts fused ops beside their definitions.
void add_levels(json& record, const Tape& tape, const TapeValues* values, const InsideSettings& settings) {
  std::vector<Level> levels = levels_of(tape, settings.only);
  if (settings.layout) lay_out(levels, tape);
  // Larger definitions, as of a recurrence over many steps, have no picture.
  constexpr std::size_t kMostDrawn = 200;
  json all = json::array(), definition_ops = json::array();
  for (const Level& level : levels)
    all.push_back(level_json(level, tape, levels, 0, -1, level.path.empty() ? "the step" : level.path));
  for (int i = 0; values && settings.definitions && i < static_cast<int>(tape.ops.size()); ++i) {
    const TapeOp& op = tape.ops[at(i)];
    if (!settings.only.empty() && op.path != settings.only && !op.path.starts_with(settings.only + '.'))
      continue;
    const std::optional<DefinitionOfOp> definition = definition_of(tape, *values, i);
    if (!definition) continue;
    Tape inner = definition->tape;  // modules do not matter inside of an op
    for (TapeOp& part : inner.ops) part.path.clear();
    json& told = record["ops"][at(i)]["definition"];
    told = {{"level", nullptr},
            {"ops", inner.ops.size()},
            {"difference", definition->difference},
            {"relative", definition->relative}};
    if (inner.ops.size() > kMostDrawn) continue;
    std::vector<Level> inside = levels_of(inner);
    if (settings.layout) lay_out(inside, inner);
    const int before = static_cast<int>(definition_ops.size());
    told["level"] = all.size();
    all.push_back(level_json(inside.front(), inner, inside, 0, before, "definition of " + op.op));
    for (const TapeOp& part : inner.ops) {
      json inputs = json::array(), outputs = json::array();
      for (const int tensor : part.inputs) inputs.push_back(sizes_of(inner.tensors[at(tensor)].shape));
      for (const int tensor : part.outputs) outputs.push_back(sizes_of(inner.tensors[at(tensor)].shape));
      definition_ops.push_back({{"op", part.op}, {"inputs", inputs}, {"outputs", outputs}});
    }
  }
  record["levels"] = std::move(all);
  record["definition_ops"] = std::move(definition_ops);
}

std::pair<int, std::int64_t> entry_named(const Tape& tape, const TapeValues& values, const std::string& name,
                                         const std::vector<std::int64_t>& index) {
  const auto found = std::ranges::find(tape.tensors, name, &TapeTensor::name);
  require(found != tape.tensors.end(), "inside: there is no tensor '", name,
          "'; parameters have their names, values those of their op and its number, as in 'layer_norm 12'");
  const Shape& shape = found->shape;
  require(static_cast<int>(index.size()) == shape.rank(), "inside: ", name, " has the shape ", shape,
          ", but ", index.size(), " indices were given");
  std::int64_t entry = 0;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    require(index[at(axis)] >= 0 && index[at(axis)] < shape[axis], "inside: ", name, " has the shape ", shape,
            "; there is no index ", index[at(axis)], " on axis ", axis);
    entry = entry * shape[axis] + index[at(axis)];
  }
  const int tensor = static_cast<int>(found - tape.tensors.begin());
  require(values.gradient(tensor).defined(), "inside: the loss does not depend on ", name);
  return {tensor, entry};
}

void add_numbers(json& record, const Tape& tape, const TapeValues& values, const InsideSettings& settings) {
  std::vector<std::pair<int, std::int64_t>> entries;
  for (const auto& [name, index] : settings.entries)
    entries.push_back(entry_named(tape, values, name, index));
  for (const auto& entry : entries_worth_following(tape, values, settings.followed_parameters)) {
    if (std::ranges::find(entries, entry) == entries.end()) entries.push_back(entry);
  }
  const FollowedNumbers followed = follow(tape, values, entries);
  const auto place = [&](json& object, int tensor, std::int64_t entry) {
    object["tensor"] = tensor;
    object["index"] = index_of(entry, tape.tensors[at(tensor)].shape);
  };
  json numbers = json::array(), chain = json::array();
  for (const FollowedNumber& number : followed.numbers) {
    json object{{"value", number.value}, {"gradient", number.gradient}, {"chain", number.chain}};
    place(object, number.tensor, number.entry);
    if (number.finite_difference) {
      object["finite_difference"] = *number.finite_difference;
      object["difference"] = number.gradient - *number.finite_difference;
    } else {
      object["finite_difference"] = object["difference"] = nullptr;
    }
    numbers.push_back(std::move(object));
  }
  for (const ChainStep& step : followed.chain) {
    json object{{"value", step.value}, {"gradient", step.gradient}, {"rest", nullptr}}, parts = json::array();
    place(object, step.tensor, step.entry);
    for (const ChainStep::Part& part : step.parts) {
      json row{{"op", part.op},
               {"factor", part.factor},
               {"gradient", part.gradient},
               {"product", part.product()},
               {"next", or_null(part.next)}};
      row["output"] = part.output;
      row["index"] = index_of(part.entry, tape.tensors[at(part.output)].shape);
      parts.push_back(std::move(row));
    }
    object["parts"] = std::move(parts);
    if (step.rest_count > 0) object["rest"] = {{"count", step.rest_count}, {"sum", step.rest_sum}};
    object["seed"] = step.tensor == values.loss();
    chain.push_back(std::move(object));
  }
  record["numbers"] = std::move(numbers);
  record["chain"] = std::move(chain);
}

json sources_json(const Tape& tape) {
  json sources = json::object();
  for (const TapeOp& op : tape.ops) {
    if (sources.contains(op.op)) continue;
    json places = json::array();
    std::string formula;
    for (const OpSource& source : sources_of(op.op)) {
      if (std::string(source.what) != "formula") {
        places.push_back(
            {{"what", source.what}, {"file", source.file}, {"line", source.line}, {"text", source.text}});
        continue;
      }
      std::istringstream lines(source.text);
      for (std::string line; std::getline(lines, line);)
        formula += (formula.empty() ? "" : " ") + line.substr(line.find_first_not_of("/ "));
    }
    sources[op.op] = {{"formula", formula}, {"places", places}};
  }
  return sources;
}

json totals_json(const Tape& tape, const InsideOrigin& origin) {
  double forward = 0, backward = 0, kept = 0;
  for (const TapeOp& op : tape.ops) {
    forward += op.operations;
    backward += op.backward_operations;
    kept += op.kept_bytes;
  }
  return {{"parameters", origin.parameters},
          {"parameter_bytes", origin.parameter_bytes},
          {"gradient_bytes", origin.gradient_bytes},
          {"moment_bytes", origin.moment_bytes},
          {"forward_seconds", tape.seconds(Phase::forward)},
          {"backward_seconds", tape.seconds(Phase::backward)},
          {"optimizer_seconds", tape.seconds(Phase::optimizer)},
          {"forward_operations", forward},
          {"backward_operations", backward},
          {"kept_bytes", kept},
          {"peak_bytes", tape.peak_bytes()},
          {"live_before", tape.live_before},
          {"live_after_forward", tape.live_after_forward},
          {"live_after", tape.live_after},
          {"loss", nullptr}};
}

}  // namespace

json inside_json(const Tape& tape, const TapeValues* values, const std::string& unknown,
                 const InsideOrigin& origin, const InsideSettings& settings) {
  json record{{"title", origin.title},
              {"command", origin.command},
              {"machine", origin.machine},
              {"device", origin.device},
              {"dtype", name_of(origin.dtype)},
              {"numbers_dtype", name_of(origin.numbers_dtype)},
              {"order", origin.order},
              {"totals", totals_json(tape, origin)},
              {"tensors", tensors_json(tape, values, unknown)},
              {"numbers", json::array()},
              {"chain", json::array()},
              {"training", nullptr}};
  json ops = json::array(), events = json::array();
  for (const TapeOp& op : tape.ops) ops.push_back(op_json(op));
  record["ops"] = std::move(ops);
  for (const TapeEvent& event : tape.events)
    events.push_back({{"phase", name_of(event.phase)},
                      {"op", or_null(event.op)},
                      {"name", event.name},
                      {"start", event.start},
                      {"seconds", event.seconds},
                      {"live", event.live},
                      {"freed", event.freed}});
  record["events"] = std::move(events);
  record["peak"] = {{"event", or_null(tape.peak_event)},
                    {"bytes", tape.peak_bytes()},
                    {"composition", shares_json(tape.peak)}};
  record["sources"] = sources_json(tape);
  if (values && values->loss() >= 0 && values->value(values->loss()).defined())
    record["totals"]["loss"] = values->value(values->loss()).item();
  add_levels(record, tape, values, settings);
  if (values) add_numbers(record, tape, *values, settings);
  return record;
}

}  // namespace needle
