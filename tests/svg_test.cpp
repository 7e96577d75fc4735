// Line charts: what is drawn for ordinary, strange and hostile data.
#include "needle/inspect/svg.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string_view>

#include "backends/error.h"
#include "tests/svg_reading.h"

namespace needle {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Chart chart_of(std::vector<double> x, std::vector<double> y) {
  return {"title", "x", "y", {{"line", std::move(x), std::move(y)}}, {}};
}

/// Every number is finite and every element closed.
void expect_well_formed(const std::string& svg) {
  EXPECT_TRUE(svg.starts_with("<svg "));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_EQ(count(svg, "\"nan"), 0);
  EXPECT_EQ(count(svg, "inf\""), 0);
  EXPECT_EQ(count(svg, "<"), count(svg, ">"));
  EXPECT_EQ(count(svg, "<text"), count(svg, "</text>"));
  EXPECT_LT(count(svg, "<text"), 60);
}

TEST(Svg, LabelsAxesLinesAndTicks) {
  const std::string svg =
      draw_chart({"Loss",
                  "step",
                  "nats",
                  {{"training", {0, 500, 1000, 2000}, {4, 3, 2.5, 2}}, {"validation", {0, 2000}, {4, 2}}},
                  {{"floor", 1.5}}});
  expect_well_formed(svg);
  EXPECT_EQ(texts(svg),
            "[Loss][1.5][2.0][2.5][3.0][3.5][4.0][0][500][1,000][1,500][2,000][step][nats]"
            "[training][validation][floor]");
  EXPECT_EQ(count(svg, "<polyline"), 2);
  EXPECT_EQ(count(svg, "stroke-dasharray"), 2);  // the reference line and its label
}

TEST(Svg, ValuesThatCannotBeDrawnBreakTheLine) {
  const std::string svg =
      draw_chart(chart_of({0, 1, 2, 3, kNaN, 5, 6, 7}, {1, kNaN, 2, 3, 4, kInfinity, 5, 1e305}));
  expect_well_formed(svg);
  EXPECT_EQ(count(svg, "<polyline"), 3);
  EXPECT_EQ(count(svg, "<circle"), 4);
}

TEST(Svg, LonePointInALongSeriesIsMarked) {
  std::vector<double> x(100), y(100);
  for (int i = 0; i < 100; ++i) x[i] = y[i] = i;
  EXPECT_EQ(count(draw_chart(chart_of(x, y)), "<circle"), 0);
  y[40] = y[42] = kNaN;
  EXPECT_EQ(count(draw_chart(chart_of(x, y)), "<circle"), 1);
}

TEST(Svg, StrangeRangesHaveReadableTicks) {
  const std::pair<std::vector<double>, const char*> cases[] = {
      {{}, "[0.0][0.2][0.4][0.6][0.8][1.0]"},
      {{kNaN, -kInfinity}, "[0.0][0.2][0.4][0.6][0.8][1.0]"},
      {{0, 0}, "[-1.0][-0.5][0.0][0.5][1.0]"},
      {{3}, "[2.7][2.8][2.9][3.0][3.1][3.2][3.3]"},
      {{2e-7, 5e-7}, "[2.0e-7][2.5e-7][3.0e-7][3.5e-7][4.0e-7][4.5e-7][5.0e-7]"},
      {{-1e7, 0, 2e7}, "[-1.0e7][-5e6][0][5e6][1.0e7][1.5e7][2.0e7]"},
      {{-1e300, 1e300}, "[-1.0e300][-5e299][0][5e299][1.0e300]"},
      {{-12000, 1300000}, "[0][200,000][400,000][600,000][800,000][1,000,000][1,200,000]"},
      {{5e-324}, "[-1.0][-0.5][0.0][0.5][1.0]"},
      {{1, 1 + 1e-15}, "[0.90][0.95][1.00][1.05][1.10]"},
  };
  for (const auto& [values, ticks] : cases) {
    const std::string svg = draw_chart(chart_of(std::vector<double>(values.size(), 1.0), values));
    expect_well_formed(svg);
    EXPECT_TRUE(texts(svg).starts_with(std::string("[title]") + ticks)) << texts(svg);
  }
}

TEST(Svg, LongSeriesIsThinnedButKeepsItsPeaks) {
  std::vector<double> x, y;
  for (int i = 0; i < 100000; ++i) {
    x.push_back(i);
    y.push_back(std::sin(i * 0.7));
  }
  y[77777] = 9;
  y[33333] = -9;
  const std::string svg = draw_chart(chart_of(x, y));
  expect_well_formed(svg);
  EXPECT_LT(svg.size(), 60000u);
  EXPECT_EQ(count(svg, ",81.7 "), 1);   // a margin of 1/22 of the height at the top
  EXPECT_EQ(count(svg, ",436.3 "), 1);  // and at the bottom
}

TEST(Svg, LabelsDoNotOverlap) {
  Chart chart{"title", "x", "y", {}, {{"goal", 1.0}}};
  for (int i = 0; i < 12; ++i) chart.series.push_back({"same", {0, 1}, {0, 1}});
  const std::string svg = draw_chart(chart);
  std::vector<double> heights;
  for (std::size_t at = svg.find(" fill=\"#222\""); at != svg.npos; at = svg.find(" fill=\"#222\"", at + 1)) {
    heights.push_back(std::stod(svg.substr(svg.rfind("y=\"", at) + 3)));
  }
  ASSERT_EQ(heights.size(), 13u);
  for (std::size_t i = 1; i < heights.size(); ++i) EXPECT_GE(heights[i] - heights[i - 1], 18.9);
  EXPECT_LT(heights.back(), 520);
}

TEST(Svg, TextIsEscaped) {
  const std::string svg = draw_chart({"a < b & \"c\"", "<x>", "'y'", {{"</svg>\n\x01", {1}, {1}}}, {}});
  expect_well_formed(svg);
  EXPECT_EQ(count(svg, "a &lt; b &amp; &quot;c&quot;"), 2);
  EXPECT_EQ(count(svg, "[&lt;/svg&gt;  ]") + count(svg, "&lt;/svg&gt;  <"), 1);
}

TEST(Svg, UnequalCountsAreAnError) {
  try {
    draw_chart(chart_of({1, 2}, {1}));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "draw_chart: series \"line\" has 2 x and 1 y");
  }
}

}  // namespace
}  // namespace needle
