#include "needle/inspect/profile.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "backends/clock.h"
#include "needle/counters.h"
#include "needle/io/files.h"

namespace needle {

namespace {

void wait_for(std::span<const NDArray> arrays) {
  for (const NDArray& array : arrays) {
    if (array.defined()) return array.device()->synchronize();
  }
}

std::vector<Shape> shapes_of(std::span<const NDArray> arrays) {
  std::vector<Shape> shapes;
  for (const NDArray& array : arrays) shapes.push_back(array.defined() ? array.shape() : Shape{});
  return shapes;
}

std::string joined(const std::vector<Shape>& shapes) {
  std::ostringstream text;
  for (std::size_t i = 0; i < shapes.size(); ++i) text << (i ? " " : "") << shapes[i];
  return text.str();
}

}  // namespace

Profiler::Profiler() : origin_(now()) {}

void Profiler::before(const OpEvent& event) {
  wait_for(event.inputs);
  started_ = now();
}

void Profiler::computed(std::span<const NDArray> outputs) {
  wait_for(outputs);
  ended_ = now();
}

void Profiler::after(const OpEvent& event) {
  const OpTally tally = tally_of(event);
  ops_.push_back({event.op, event.path, event.phase, started_ - origin_, ended_ - started_, event.operations,
                  tally.bytes_read + tally.bytes_written, shapes_of(event.inputs), shapes_of(event.outputs)});
}

std::vector<ProfileRow> profile_table(const std::vector<ProfiledOp>& ops) {
  std::map<std::pair<std::string, Phase>, ProfileRow> sums;
  for (const ProfiledOp& op : ops) {
    ProfileRow& row = sums[{op.op, op.phase}];
    row.op = op.op;
    row.phase = op.phase;
    row.seconds += op.seconds;
    row.operations += op.operations;
    row.bytes += op.bytes;
    ++row.calls;
  }
  std::vector<ProfileRow> rows;
  for (const auto& [key, row] : sums) rows.push_back(row);
  std::sort(rows.begin(), rows.end(),
            [](const ProfileRow& a, const ProfileRow& b) { return a.seconds > b.seconds; });
  return rows;
}

void write_trace(const std::string& file, const std::vector<ProfiledOp>& ops) {
  nlohmann::json events = nlohmann::json::array();
  for (const ProfiledOp& op : ops) {
    events.push_back({{"name", op.op},
                      {"cat", name_of(op.phase)},
                      {"ph", "X"},
                      {"ts", 1e6 * op.start},
                      {"dur", 1e6 * op.seconds},
                      {"pid", 1},
                      {"tid", 1},
                      {"args",
                       {{"module", op.path},
                        {"inputs", joined(op.inputs)},
                        {"outputs", joined(op.outputs)},
                        {"operations", op.operations},
                        {"bytes", op.bytes}}}});
  }
  const nlohmann::json trace{{"traceEvents", events}, {"displayTimeUnit", "ms"}};
  write_file_synced(file, trace.dump());
}

}  // namespace needle
