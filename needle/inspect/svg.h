// Line charts as standalone SVG files.
#pragma once

#include <string>
#include <vector>

namespace needle {

/// One line of a chart: points (x[i], y[i]) joined in the given order.
struct Series {
  std::string name;
  std::vector<double> x, y;
};

/// A dashed horizontal line at `y`, for a bound or a goal.
struct ReferenceLine {
  std::string label;
  double y = 0;
};

/// What a chart shows. All texts are plain UTF-8.
struct Chart {
  std::string title, x_label, y_label;
  std::vector<Series> series;
  std::vector<ReferenceLine> reference_lines;
};

/// The chart as a standalone SVG document of 900 x 520 units, every line labelled at its right end. A value
/// that is not finite (or beyond 1e300) breaks its line and is left out. Long series are thinned to what the
/// width can show, with their peaks kept. Throws Error when a series has unequally many x and y.
std::string draw_chart(const Chart& chart);

}  // namespace needle
