#include "needle/inspect/tape_levels.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <set>
#include <sstream>

namespace needle {

namespace {

std::size_t at(int number) { return static_cast<std::size_t>(number); }

/// "blocks.0.ffn.up" as {"blocks.0", "ffn", "up"}: a number belongs to the name before it.
std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  std::istringstream stream(path);
  for (std::string part; std::getline(stream, part, '.');) {
    const bool number = std::ranges::all_of(part, [](unsigned char c) { return std::isdigit(c) != 0; });
    if (number && !parts.empty())
      parts.back() += '.' + part;
    else
      parts.push_back(part);
  }
  return parts;
}

/// Makes the levels of one tape.
class Levels {
 public:
  explicit Levels(const Tape& tape) : tape_(tape) {
    levels_.emplace_back();
    for (const TapeOp& op : tape.ops) level_of_op_.push_back(level_of(parts_of(op.path)));
    for (int number = 0; number < static_cast<int>(tape.ops.size()); ++number)
      add_box(level_of_op_[at(number)], {LevelNode::Kind::op, tape.ops[at(number)].op, number});
    for (int number = 0; number < static_cast<int>(tape.ops.size()); ++number) {
      for (const int tensor : tape.ops[at(number)].inputs) {
        if (tape.tensors[at(tensor)].producer < 0) readers_[tensor].push_back(number);
      }
    }
    // A leaf stands in the innermost module that holds all its readers.
    for (const auto& [tensor, readers] : readers_) {
      int level = level_of_op_[at(readers.front())];
      for (const int reader : readers) level = common(level, level_of_op_[at(reader)]);
      const TapeTensor& leaf = tape.tensors[at(tensor)];
      const std::string& path = levels_[at(level)].path;
      const bool inside = !path.empty() && leaf.name.starts_with(path + '.');
      add_box(level,
              {LevelNode::Kind::tensor,
               (inside ? leaf.name.substr(path.size() + 1) : leaf.name) + ' ' + text_of(leaf.shape), tensor});
      for (const int reader : readers) connect(level, tensor, level_of_op_[at(reader)], reader, tensor);
    }
    for (int number = 0; number < static_cast<int>(tape.ops.size()); ++number) {
      for (const int tensor : tape.ops[at(number)].inputs) {
        const int producer = tape.tensors[at(tensor)].producer;
        if (producer >= 0)
          connect(level_of_op_[at(producer)], producer, level_of_op_[at(number)], number, tensor);
      }
    }
  }

  std::vector<Level> take() { return std::move(levels_); }

 private:
  /// What a box shows: its kind, and the number there; for ports, whether it leaves.
  struct BoxKey {
    int level;
    LevelNode::Kind kind;
    int number;
    bool out;
    friend auto operator<=>(const BoxKey&, const BoxKey&) = default;
  };

  int level_of(const std::vector<std::string>& parts) {
    int level = 0;
    std::string path;
    for (const std::string& part : parts) {
      path += (path.empty() ? "" : ".") + part;
      const auto [found, is_new] = by_path_.try_emplace(path, static_cast<int>(levels_.size()));
      if (is_new) {
        Level inside;
        inside.path = path;
        inside.parent = level;
        levels_.push_back(std::move(inside));
        add_box(level, {LevelNode::Kind::module, part, found->second});
      }
      level = found->second;
    }
    return level;
  }

  int add_box(int level, LevelNode node, bool out = false) {
    const auto [found, is_new] = boxes_.try_emplace({level, node.kind, node.number, out},
                                                    static_cast<int>(levels_[at(level)].nodes.size()));
    if (is_new) levels_[at(level)].nodes.push_back(std::move(node));
    return found->second;
  }

  int depth(int level) const {
    int depth = 0;
    for (; level != 0; level = levels_[at(level)].parent) ++depth;
    return depth;
  }
  int common(int a, int b) const {
    while (a != b) {
      int& deeper = depth(a) >= depth(b) ? a : b;
      deeper = levels_[at(deeper)].parent;
    }
    return a;
  }

  void add_edge(int level, int from, int to, int tensor) {
    if (!edges_.insert({level, from, to, tensor}).second) return;
    levels_[at(level)].edges.push_back({from, to, tensor});
  }

  /// Draws the way of `tensor` from the box at `from_level` (its producer, or itself) to the op `to`: out
  /// through the ports of the modules that it leaves, across, and in through those that it enters.
  void connect(int from_level, int from, int to_level, int to, int tensor) {
    const bool leaf = tape_.tensors[at(tensor)].producer < 0;
    const int across = common(from_level, to_level);
    int box = add_box(from_level, {leaf ? LevelNode::Kind::tensor : LevelNode::Kind::op, "", from});
    for (int level = from_level; level != across; level = levels_[at(level)].parent) {
      add_edge(level, box, add_box(level, {LevelNode::Kind::port, "out", tensor}, true), tensor);
      box = add_box(levels_[at(level)].parent, {LevelNode::Kind::module, "", level});
    }
    int target = add_box(to_level, {LevelNode::Kind::op, "", to});
    for (int level = to_level; level != across; level = levels_[at(level)].parent) {
      add_edge(level, add_box(level, {LevelNode::Kind::port, "in", tensor}), target, tensor);
      target = add_box(levels_[at(level)].parent, {LevelNode::Kind::module, "", level});
    }
    if (box != target) add_edge(across, box, target, tensor);
  }

  const Tape& tape_;
  std::vector<Level> levels_;
  std::vector<int> level_of_op_;
  std::map<std::string, int> by_path_;
  std::map<BoxKey, int> boxes_;
  std::map<int, std::vector<int>> readers_;
  std::set<std::array<int, 4>> edges_;
};

/// The levels at `path` and below it, counted anew.
std::vector<Level> part_of(std::vector<Level> levels, const std::string& path) {
  std::vector<int> numbers(levels.size(), -1);
  std::vector<Level> kept;
  for (std::size_t i = 0; i < levels.size(); ++i) {
    if (levels[i].path != path && !levels[i].path.starts_with(path + '.')) continue;
    numbers[i] = static_cast<int>(kept.size());
    kept.push_back(levels[i]);
  }
  for (Level& level : kept) {
    level.parent = level.parent < 0 ? -1 : numbers[at(level.parent)];
    for (LevelNode& node : level.nodes) {
      if (node.kind == LevelNode::Kind::module) node.number = numbers[at(node.number)];
    }
  }
  return kept;
}

}  // namespace

std::string text_of(const Shape& shape) {
  std::ostringstream text;
  text << shape;
  return text.str();
}

std::vector<Level> levels_of(const Tape& tape, const std::string& only, int most) {
  std::vector<Level> levels = Levels(tape).take();
  if (!only.empty()) {
    std::string known;
    for (const Level& level : levels) {
      if (level.parent == 0) known += (known.empty() ? "" : ", ") + level.path;
    }
    const bool there = std::ranges::any_of(levels, [&](const Level& level) { return level.path == only; });
    require(there, "inside: there is no module '", only, "'; those of the model are ", known);
    levels = part_of(std::move(levels), only);
  }
  for (const Level& level : levels) {
    require(static_cast<int>(level.nodes.size()) <= most,
            "inside: ", level.path.empty() ? "the outermost level" : level.path, " has ", level.nodes.size(),
            " boxes, too many to draw (", most, " at most); choose a part by --only PATH, or fewer layers");
  }
  return levels;
}

}  // namespace needle
