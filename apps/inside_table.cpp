#include "apps/inside_table.h"

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <map>
#include <sstream>

#include "apps/terminal.h"
#include "needle/inspect/svg_text.h"
#include "needle/inspect/tape_levels.h"

namespace needle {

namespace {

/// What the rows of a module add up to.
struct Sums {
  double operations = 0, bytes = 0, kept = 0, forward = 0, backward = 0;
  int ops = 0;

  void add(const TapeOp& op) {
    operations += op.operations;
    bytes += op.bytes_read + op.bytes_written;
    kept += op.kept_bytes;
    forward += op.forward_seconds;
    backward += op.backward_seconds;
    ++ops;
  }
};

/// "12.3 k": three digits and a unit.
std::string short_number(double number) {
  constexpr const char* kUnits[] = {"", " k", " M", " G", " T"};
  std::size_t unit = 0;
  constexpr double kNext = 999.5;
  while (number >= kNext && unit + 1 < std::size(kUnits)) number /= 1000, ++unit;
  const int digits = unit == 0 || number >= 99.95 ? 0 : number >= 9.995 ? 1 : 2;
  return fixed(number, digits) + kUnits[unit];
}

std::string microseconds(double seconds) { return seconds > 0 ? fixed(1e6 * seconds, 1) : "-"; }

std::vector<std::string> modules_of(const std::string& path) {
  std::vector<std::string> paths;
  for (std::size_t end = path.find('.'); !path.empty(); end = path.find('.', end + 1)) {
    // "blocks.0" is one module.
    const std::size_t next = end == std::string::npos ? path.size() : end;
    const bool number =
        end != std::string::npos && end + 1 < path.size() && path[end + 1] >= '0' && path[end + 1] <= '9';
    if (!number) paths.push_back(path.substr(0, next));
    if (end == std::string::npos) break;
  }
  return paths;
}

std::string shapes_of(const Tape& tape, const TapeOp& op) {
  std::string text;
  const auto shape = [&](int tensor) {
    return text_of(tape.tensors[static_cast<std::size_t>(tensor)].shape);
  };
  for (const int input : op.inputs) text += (text.empty() ? "" : " ") + shape(input);
  text += " →";
  for (const int output : op.outputs) text += ' ' + shape(output);
  return text;
}

constexpr std::size_t kNumber = 4, kName = 32, kCell = 9;

std::string left(const std::string& text, std::size_t width) {
  const std::size_t length = character_count(text);
  return length > width ? text : text + std::string(width - length, ' ');
}
std::string right(const std::string& text, std::size_t width) {
  const std::size_t length = character_count(text);
  return length > width ? text : std::string(width - length, ' ') + text;
}

void print_cells(const std::string& number, const std::string& name, const std::string& shapes,
                 const std::vector<std::string>& cells) {
  std::cout << right(number, kNumber) << "  " << left(name, kName) << ' ';
  for (std::size_t i = 0; i < cells.size(); ++i) std::cout << right(cells[i], kCell);
  std::cout << "  " << shapes << '\n';
}

void print_sums(const std::string& name, const std::string& what, const Sums& sums) {
  print_cells("", name, what,
              {short_number(sums.operations), short_number(sums.bytes), short_number(sums.kept), "",
               microseconds(sums.forward), microseconds(sums.backward)});
}

/// The largest, right-aligned, and the others as one.
void print_shares(const std::vector<MemoryShare>& shares) {
  constexpr std::size_t kShown = 10, kWidth = 15;
  std::size_t rest = 0;
  const auto print = [&](std::size_t bytes, const std::string& what) {
    const std::string number = with_commas(static_cast<std::int64_t>(bytes));
    print_row("", std::string(kWidth - std::min(kWidth, number.size()), ' ') + number + "  " + what);
  };
  for (std::size_t i = 0; i < shares.size(); ++i) {
    if (i < kShown)
      print(shares[i].bytes, shares[i].what);
    else
      rest += shares[i].bytes;
  }
  if (rest > 0) print(rest, "in " + std::to_string(shares.size() - kShown) + " smaller shares");
}

}  // namespace

void print_tape(const Tape& tape, int depth, const std::string& only) {
  const auto wanted = [&](const TapeOp& op) {
    return only.empty() || op.path == only || op.path.starts_with(only + '.');
  };
  std::map<std::string, Sums> sums;
  Sums all;
  for (const TapeOp& op : tape.ops) {
    if (!wanted(op)) continue;
    all.add(op);
    for (const std::string& module : modules_of(op.path)) sums[module].add(op);
  }
  require(all.ops > 0, "inside: there is no module '", only, "' that ran an op");
  print_cells("op", "module, op", "shapes", {"operat.", "bytes", "kept", "until", "fwd µs", "bwd µs"});
  std::vector<std::string> open;
  std::map<std::string, bool> told;
  for (std::size_t i = 0; i < tape.ops.size(); ++i) {
    const TapeOp& op = tape.ops[i];
    if (!wanted(op)) continue;
    const std::vector<std::string> modules = modules_of(op.path);
    std::size_t same = 0;
    while (same < open.size() && same < modules.size() && open[same] == modules[same]) ++same;
    for (std::size_t level = same; level < modules.size(); ++level) {
      if (depth > 0 && static_cast<int>(level) >= depth) break;
      const std::string& path = modules[level];
      const std::string name =
          std::string(2 * level, ' ') + (level == 0 ? path : path.substr(modules[level - 1].size() + 1));
      if (std::exchange(told[path], true))
        print_cells("", name, "(again)", {});
      else
        print_sums(name, std::to_string(sums[path].ops) + (sums[path].ops == 1 ? " op" : " ops"), sums[path]);
    }
    open = modules;
    if (depth > 0 && static_cast<int>(modules.size()) >= depth) continue;
    const std::string until = op.kept_until >= 0 ? std::to_string(op.kept_until) : "-";
    print_cells(std::to_string(i), std::string(2 * modules.size(), ' ') + op.op, shapes_of(tape, op),
                {short_number(op.operations), short_number(op.bytes_read + op.bytes_written),
                 short_number(op.kept_bytes), until, microseconds(op.forward_seconds),
                 microseconds(op.backward_seconds)});
  }
  print_sums("sum", std::to_string(all.ops) + " ops", all);
}

void print_times_and_memory(const Tape& tape) {
  print_row("time", fixed(1e3 * tape.seconds(Phase::forward), 2) + " ms forward, " +
                        fixed(1e3 * tape.seconds(Phase::backward), 2) + " ms backward, " +
                        fixed(1e3 * tape.seconds(Phase::optimizer), 2) + " ms " + tape.events.back().name);
  print_row("memory", with_commas(static_cast<std::int64_t>(tape.live_before)) + " bytes before, " +
                          with_commas(static_cast<std::int64_t>(tape.peak_bytes())) + " at most, in event " +
                          std::to_string(tape.peak_event) + " of " + std::to_string(tape.events.size()) +
                          ":");
  print_shares(tape.peak);
}

}  // namespace needle
