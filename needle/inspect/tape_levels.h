// The graph of a tape as levels, one a module: what is inside, how it is joined, and where it is drawn.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "needle/inspect/tape.h"

namespace needle {

/// A box of a level.
struct LevelNode {
  enum class Kind { module, op, tensor, port };
  Kind kind;
  std::string label;
  int number = -1;  ///< of the level inside (module), of the op, or of the tensor
  // Where it is drawn: its row, the middle's place in it, and its size, in points of 1/72 inch.
  int rank = 0;
  double x = 0, width = 0, height = 0;
};

/// An arrow from box to box.
struct LevelEdge {
  int from, to;  ///< boxes of the level
  int tensor;    ///< what goes along
  /// (rank, x) of the rows that it passes on its way.
  std::vector<std::pair<int, double>> bends = {};
};

/// The inside of a module: modules, ops of its own, parameters, and ports where values enter and leave.
struct Level {
  std::string path;  ///< of the module, "" for the whole
  int parent = -1;   ///< level
  int ranks = 0;
  std::vector<LevelNode> nodes;
  std::vector<LevelEdge> edges;
};

/// The levels of a tape, the whole first; `only` keeps the modules at that path and below. Throws when there
/// is none, and where one level has more than `most` boxes, which nobody could read.
std::vector<Level> levels_of(const Tape& tape, const std::string& only = {}, int most = 600);

/// Places boxes and bends of all levels by Graphviz's program `dot` (Gansner et al. 1993). Throws where it is
/// not installed.
void lay_out(std::vector<Level>& levels, const Tape& tape);

/// "[8, 64, 128]".
std::string text_of(const Shape& shape);

}  // namespace needle
