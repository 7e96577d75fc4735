// Heat maps: what is drawn, as SVG and in the terminal.
#include "needle/inspect/heat_map.h"

#include <gtest/gtest.h>

#include <limits>
#include <string_view>

#include "backends/error.h"
#include "tests/svg_reading.h"

namespace needle {
namespace {

HeatMap numbered(std::size_t size) {
  HeatMap map{"title", "row", "column", {}, {}, {}, {"no", "yes"}};
  for (std::size_t i = 0; i < size; ++i) {
    map.row_labels.push_back(std::to_string(i + 1));
    for (std::size_t j = 0; j < size; ++j) map.values.push_back(j <= i);
  }
  map.column_labels = map.row_labels;
  return map;
}

TEST(HeatMap, BothAxesAndTheColoursAreLabelled) {
  const std::string svg =
      draw_heat_map({"a < b", "query", "key", {"x", "y"}, {"p", "q"}, {0, 0.5, 0.25, 1}, {}});
  EXPECT_TRUE(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
  EXPECT_EQ(texts(svg), "[x][y][p][q][key →][← query][0.00][0.25][0.50][0.75][1.00][a &lt; b]");
  EXPECT_EQ(count(svg, "<path"), 4);
  EXPECT_EQ(count(svg, "<"), count(svg, ">"));
}

TEST(HeatMap, KindsHaveNamesInsteadOfAmounts) {
  EXPECT_EQ(texts(draw_heat_map(numbered(2))), "[1][2][1][2][column →][← row][no][yes][title]");
}

TEST(HeatMap, LabelsThatWouldOverlapAreThinnedAndLongOnesAreShortened) {
  const std::string large = texts(draw_heat_map(numbered(64)));
  EXPECT_EQ(count(large, "[1]"), 2);
  EXPECT_EQ(count(large, "[2]"), 0);
  EXPECT_LT(draw_heat_map(numbered(64)).size(), 200000u);
  HeatMap map = numbered(2);
  map.column_labels = {"ä23456789abcdef", "short"};
  const std::string svg = draw_heat_map(map);
  EXPECT_EQ(count(texts(svg), "[ä23456789ab…]"), 1);
  EXPECT_EQ(count(svg, "rotate(-90"), 3);  // two labels and the name of the rows
}

TEST(HeatMap, InTheTerminalCellsAreBlocks) {
  EXPECT_EQ(heat_map_text({"", "query", "key", {"a", "b"}, {"a", "b"}, {1, 0, 0.1, 0.6}, {}}),
            "query \\ key  a b\n"
            "          a  ██··\n"
            "          b  ░░▓▓\n"
            "             · 0  ░ to 0.25  ▒ to 0.50  ▓ to 0.75  █ to 1.00\n");
  const std::string wide = heat_map_text(numbered(33));
  EXPECT_EQ(wide.substr(0, wide.find('\n')), "row \\ column  1  4  7  10 13 16 19 22 25 28 31");
}

TEST(HeatMap, AllZeroIsDrawn) {
  HeatMap map{"", "r", "c", {"a"}, {"b"}, {0}, {}};
  EXPECT_EQ(count(texts(draw_heat_map(map)), "[0.00]"), 1);
  EXPECT_NE(heat_map_text(map).find("·"), std::string::npos);
}

TEST(HeatMap, ValuesThatDoNotFitAreAnError) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const HeatMap wrong[] = {{"", "r", "c", {"a"}, {"b"}, {1, 2}, {}},
                           {"", "r", "c", {}, {}, {}, {}},
                           {"", "r", "c", {"a"}, {"b"}, {nan}, {}},
                           {"", "r", "c", {"a"}, {"b"}, {-1}, {}},
                           {"", "r", "c", {"a"}, {"b"}, {2}, {"no", "yes"}},
                           {"", "r", "c", {"a"}, {"b"}, {0.5}, {"no", "yes"}},
                           {"", "r", "c", {"a"}, {"b"}, {0}, {"1", "2", "3", "4"}}};
  for (const HeatMap& map : wrong) {
    EXPECT_THROW(draw_heat_map(map), Error);
    EXPECT_THROW(heat_map_text(map), Error);
  }
}

}  // namespace
}  // namespace needle
