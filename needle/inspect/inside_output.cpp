// The record as a page, as a graph and as a trace.
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "needle/inspect/inside.h"
#include "needle/inspect/inside_page.h"
#include "needle/inspect/tape_levels.h"
#include "needle/io/files.h"
#include "needle/node.h"

namespace needle {

namespace {

using nlohmann::json;

std::size_t at(int number) { return static_cast<std::size_t>(number); }

}  // namespace

std::string inside_page(const json& record) {
  std::string data = record.dump(-1, ' ', false, json::error_handler_t::replace);
  std::string page(kInsidePage);
  constexpr std::string_view kPlace = "RECORD</script>";
  const std::size_t place = page.find(kPlace);
  require(place != std::string::npos, "inside: the page has no place for the record");
  std::string safe;  // no tag can end the script early
  safe.reserve(data.size());
  for (const char c : data) {
    if (c == '<')
      safe += "\\u003c";
    else
      safe += c;
  }
  return page.replace(place, std::string_view("RECORD").size(), safe);
}

std::string inside_dot(const Tape& tape, const std::string& only) {
  const std::vector<Level> levels = levels_of(tape, only, 1 << 20);
  const auto shown = [&](const TapeOp& op) {
    return only.empty() || op.path == only || op.path.starts_with(only + '.');
  };
  std::ostringstream text;
  text << "digraph step {\n  rankdir=TB; node [shape=box, fontname=\"sans-serif\"];\n";
  const auto quoted = [](const std::string& label) { return json(label).dump(); };
  const std::function<void(int)> write = [&](int number) {
    const Level& level = levels[at(number)];
    if (number > 0) text << "  subgraph cluster_" << number << " { label=" << quoted(level.path) << ";\n";
    for (const LevelNode& node : level.nodes) {
      if (node.kind == LevelNode::Kind::module) {
        write(node.number);
      } else if (node.kind == LevelNode::Kind::op) {
        const TapeOp& op = tape.ops[at(node.number)];
        std::ostringstream label;
        label << op.op << '\n'
              << "forward " << 1e6 * op.forward_seconds << " us, backward " << 1e6 * op.backward_seconds
              << " us\nkeeps " << op.kept_bytes << " bytes";
        text << "  op" << node.number << " [label=" << quoted(label.str()) << "];\n";
      } else if (node.kind == LevelNode::Kind::tensor) {
        text << "  tensor" << node.number << " [label=" << quoted(node.label) << ", style=rounded];\n";
      }
    }
    if (number > 0) text << "  }\n";
  };
  write(0);
  for (std::size_t i = 0; i < tape.ops.size(); ++i) {
    if (!shown(tape.ops[i])) continue;
    for (const int tensor : tape.ops[i].inputs) {
      const TapeTensor& from = tape.tensors[at(tensor)];
      text << "  "
           << (from.producer < 0 ? "tensor" + std::to_string(tensor) : "op" + std::to_string(from.producer))
           << " -> op" << i << " [label=" << quoted(text_of(from.shape)) << "];\n";
    }
  }
  text << "}\n";
  return text.str();
}

std::vector<ProfiledOp> profiled(const Tape& tape) {
  std::vector<ProfiledOp> ops;
  for (const TapeEvent& event : tape.events) {
    ProfiledOp row{event.name, "", event.phase, event.start, event.seconds, 0, 0, {}, {}};
    if (event.op >= 0) {
      const TapeOp& op = tape.ops[at(event.op)];
      const bool forward = event.phase == Phase::forward;
      row.path = op.path;
      row.operations = forward ? op.operations : op.backward_operations;
      row.bytes = forward ? op.bytes_read + op.bytes_written : op.backward_bytes;
      for (const int tensor : op.inputs) row.inputs.push_back(tape.tensors[at(tensor)].shape);
      for (const int tensor : op.outputs) row.outputs.push_back(tape.tensors[at(tensor)].shape);
      if (!forward) std::swap(row.inputs, row.outputs);
    }
    ops.push_back(std::move(row));
  }
  return ops;
}

void record(const Tensor& loss, const std::string& file, const std::vector<Parameter>& names) {
  require(loss.requires_grad() && !loss.is_leaf(), "record: nothing was recorded of this value");
  require(loss.array().count() == 1, "record: wants a loss, a single number, got ", loss.shape());
  const std::vector<std::shared_ptr<Node>> nodes = nodes_of(loss);
  TapeWatch plan(loss.device(), names);
  plan.adopt(nodes);
  const Tape order = plan.finish();
  const TapeValues values(order, loss);
  // What was not counted when it ran can be where all is known.
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i]->operations == 0) nodes[i]->operations = values.operations(static_cast<int>(i));
  }
  TapeWatch watch(loss.device(), names);
  watch.adopt(nodes);
  InsideOrigin origin;
  for (const Tensor& leaf : leaves_of({loss})) {
    origin.parameters += leaf.array().count();
    origin.parameter_bytes += leaf.array().bytes();
  }
  {
    const ObserverScope scope(&watch);
    gradients(loss, leaves_of({loss}));
  }
  Tape tape = watch.finish();
  for (std::size_t i = 0; i < nodes.size(); ++i) values.compute_again(static_cast<int>(i), tape.ops[i]);
  origin.title = "a loss of " + std::to_string(tape.ops.size()) + " ops";
  origin.device = loss.device().name();
  origin.dtype = origin.numbers_dtype = loss.dtype();
  write_file_synced(file, inside_page(inside_json(tape, &values, "", origin)));
}

}  // namespace needle
