// Grids of values as pictures: who reads whom, attention weights.
#pragma once

#include <string>
#include <vector>

namespace needle {

/// What a picture shows. All texts are plain UTF-8.
struct HeatMap {
  std::string title, row_title, column_title;
  std::vector<std::string> row_labels, column_labels;
  std::vector<double> values;      ///< [rows, columns], row after row, at least 0
  std::vector<std::string> kinds;  ///< what the values 0, 1 and 2 mean; none: the values are amounts
};

/// The picture as a standalone SVG document: labels on both axes, thinned where they would overlap, and below
/// it what the colours mean. Throws Error when the values do not fit the labels or the kinds.
std::string draw_heat_map(const HeatMap& map);

/// The picture in block characters, for a terminal: cells of two characters up to 32 columns, else of one.
/// Throws as draw_heat_map().
std::string heat_map_text(const HeatMap& map);

}  // namespace needle
