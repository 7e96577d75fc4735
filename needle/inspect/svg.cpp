// Drawing a line chart: scales and ticks, lines thinned to the pixels, labels that do not overlap.
#include "needle/inspect/svg.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <string_view>
#include <tuple>
#include <utility>

#include "backends/error.h"
#include "needle/inspect/svg_text.h"

namespace needle {
namespace {

constexpr double kWidth = 900, kHeight = 520;
constexpr double kTop = 64, kBottom = kHeight - 66;
constexpr double kLargest = 1e300;  // so that the difference of two values is finite
constexpr double kLabelHeight = 19, kLabelSize = 13;
constexpr int kXTicks = 6, kYTicks = 6;
constexpr std::size_t kMostMarkers = 40, kMostBold = 400;

/// Told apart with every common kind of colour blindness (Okabe and Ito 2008, without its yellow, which is
/// too pale for a line on white). After one round of colours the lines are dashed.
constexpr std::string_view kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};
constexpr std::string_view kDashes[] = {"", " stroke-dasharray=\"9 4\"", " stroke-dasharray=\"3 3\""};
constexpr std::string_view kReferenceStyle = " stroke=\"#555\" stroke-width=\"1.5\" stroke-dasharray=\"2 4\"";

bool drawable(double value) { return std::abs(value) <= kLargest; }

/// "1,500.25"
std::string plain_number(double value, int decimals) {
  std::string text = digits(value, std::chars_format::fixed, decimals);
  const int first_digit = text.front() == '-';
  for (int comma = static_cast<int>(std::min(text.find('.'), text.size())) - 3; comma > first_digit;
       comma -= 3) {
    text.insert(static_cast<std::size_t>(comma), 1, ',');
  }
  return text;
}

/// "1.5e-7"
std::string scientific_number(double value, int decimals) {
  const std::string text = digits(value, std::chars_format::scientific, decimals);
  const std::size_t exponent = text.find('e') + 1;
  return text.substr(0, exponent) + std::to_string(std::stoi(text.substr(exponent)));
}

/// The range of values along one axis and the units that it covers on the drawing.
class Scale {
 public:
  void include(double value) {
    low_ = std::min(low_, value);
    high_ = std::max(high_, value);
  }
  /// Fixes the range: never empty, and wider by `margin` of itself at both ends.
  void finish(double margin, double start, double end) {
    if (low_ > high_) std::tie(low_, high_) = std::pair(0.0, 1.0);
    const double largest = std::max(std::abs(low_), std::abs(high_));
    // A narrower range than this has no exact ticks.
    if (high_ - low_ <= std::max(1e-9 * largest, 1e-290)) {
      const double half = largest > 1e-280 ? 0.1 * largest : 1;
      low_ -= half;
      high_ += half;
    } else {
      const double wider = margin * (high_ - low_);
      low_ -= wider;
      high_ += wider;
    }
    start_ = start;
    end_ = end;
  }
  double operator()(double value) const { return start_ + (value - low_) / (high_ - low_) * (end_ - start_); }

  struct Tick {
    double at;
    std::string label;
  };
  /// About `wanted` ticks at multiples of 1, 2 or 5 times a power of ten.
  std::vector<Tick> ticks(int wanted) const {
    const double rough = (high_ - low_) / wanted;
    const double power = std::pow(10, std::floor(std::log10(rough)));
    const double ratio = rough / power;
    const double step = power * (ratio <= 1.4 ? 1 : ratio <= 3 ? 2 : ratio <= 7 ? 5 : 10);
    const int step_exponent = static_cast<int>(std::floor(std::log10(step) + 1e-9));
    const double largest = std::max(std::abs(low_), std::abs(high_));
    const bool plain = largest < 1e7 && step_exponent >= -4;
    std::vector<Tick> ticks;
    // Counted by index, since a sum of steps drifts; the slack keeps a tick that lies right at an end.
    const double first = std::ceil(low_ / step - 1e-9), count = std::floor(high_ / step + 1e-9) - first;
    for (int i = 0; i <= static_cast<int>(count); ++i) {
      const double value = (first + i) * step + 0.0;  // + 0.0: never "-0"
      const int exponent =
          value == 0 ? step_exponent : static_cast<int>(std::floor(std::log10(std::abs(value)) + 1e-9));
      ticks.push_back({value, plain ? plain_number(value, std::max(0, -step_exponent))
                              : value == 0
                                  ? "0"
                                  : scientific_number(value, std::max(0, exponent - step_exponent))});
    }
    return ticks;
  }

 private:
  double low_ = std::numeric_limits<double>::infinity(), high_ = -low_;
  double start_ = 0, end_ = 1;
};

struct Point {
  double x, y;
};

/// The unbroken runs of a series in drawing units. Of consecutive points in one column of pixels only the
/// first, lowest, highest and last are kept.
std::vector<std::vector<Point>> runs_of(const Series& series, const Scale& x_scale, const Scale& y_scale) {
  std::vector<std::vector<Point>> runs;
  bool broken = true;
  std::size_t column_size = 0;
  for (std::size_t i = 0; i < series.x.size(); ++i) {
    if (!drawable(series.x[i]) || !drawable(series.y[i])) {
      broken = true;
      continue;
    }
    if (std::exchange(broken, false)) {
      runs.emplace_back();
      column_size = 0;
    }
    std::vector<Point>& run = runs.back();
    const Point point{x_scale(series.x[i]), y_scale(series.y[i])};
    if (!run.empty() && std::floor(run.back().x) != std::floor(point.x)) column_size = 0;
    run.push_back(point);
    if (++column_size > 4) {
      // Of the column's five points the first and the last stay, and the two extremes of the others.
      const auto middle = run.end() - 4;
      const auto [low, high] =
          std::minmax_element(middle, run.end() - 1, [](Point a, Point b) { return a.y < b.y; });
      run.erase(middle + (3 - (low - middle) - (high - middle)));  // the places of the three sum to 3
      column_size = 4;
    }
  }
  return runs;
}

/// A name beside the right end of a line, with a short piece of that line before it.
struct Label {
  std::string text, line_style;
  double y;
};

/// Moves labels down, and up again from the lower end, until none overlaps its neighbour.
void spread(std::vector<Label>& labels) {
  std::ranges::stable_sort(labels, {}, &Label::y);
  for (std::size_t i = 1; i < labels.size(); ++i) {
    labels[i].y = std::max(labels[i].y, labels[i - 1].y + kLabelHeight);
  }
  double limit = kBottom;
  for (std::size_t i = labels.size(); i-- > 0; limit -= kLabelHeight) {
    labels[i].y = std::min(labels[i].y, limit);
    limit = labels[i].y;
  }
}

/// One chart on its way to text.
class Drawing {
 public:
  explicit Drawing(const Chart& chart) : chart_(chart) {
    double widest_name = 0;
    for (const Series& series : chart.series) {
      require(series.x.size() == series.y.size(), "draw_chart: series \"", series.name, "\" has ",
              series.x.size(), " x and ", series.y.size(), " y");
      for (std::size_t i = 0; i < series.x.size(); ++i) {
        if (!drawable(series.x[i]) || !drawable(series.y[i])) continue;
        x_scale_.include(series.x[i]);
        y_scale_.include(series.y[i]);
      }
      widest_name = std::max(widest_name, text_width(series.name, kLabelSize));
    }
    for (const ReferenceLine& line : chart.reference_lines) {
      if (drawable(line.y)) y_scale_.include(line.y);
      widest_name = std::max(widest_name, text_width(line.label, kLabelSize));
    }
    y_scale_.finish(0.05, kBottom, kTop);
    double widest_tick = 0;
    for (const auto& tick : y_scale_.ticks(kYTicks))
      widest_tick = std::max(widest_tick, text_width(tick.label, kLabelSize));
    left_ = widest_tick + 54;
    right_ = kWidth - std::clamp(widest_name + 56, 30.0, 0.4 * kWidth);
    x_scale_.finish(0, left_, right_);
  }

  std::string text() {
    frame();
    for (const ReferenceLine& line : chart_.reference_lines) draw(line);
    for (std::size_t i = 0; i < chart_.series.size(); ++i) draw(chart_.series[i], i);
    spread(labels_);
    for (const Label& label : labels_) draw(label);
    out_ << "</svg>\n";
    return out_.str();
  }

 private:
  void line(double x1, double y1, double x2, double y2, std::string_view style) {
    out_ << "<line x1=\"" << place(x1) << "\" y1=\"" << place(y1) << "\" x2=\"" << place(x2) << "\" y2=\""
         << place(y2) << '"' << style << "/>\n";
  }
  void words(double x, double y, std::string_view style, std::string_view words) {
    out_ << "<text x=\"" << place(x) << "\" y=\"" << place(y) << '"' << style << '>' << escaped(words)
         << "</text>\n";
  }

  void frame() {
    out_ << svg_start(chart_.title, kWidth, kHeight, kLabelSize);
    const double title_size =
        std::min(19.0, 19 * (kWidth - left_ - 20) / (1.1 * text_width(chart_.title, 19) + 1));
    words(left_, 36, " font-size=\"" + place(title_size) + "\" font-weight=\"600\" fill=\"#111\"",
          chart_.title);
    for (const auto& tick : y_scale_.ticks(kYTicks)) {
      line(left_, y_scale_(tick.at), right_, y_scale_(tick.at), " stroke=\"#e4e4e4\"");
      words(left_ - 9, y_scale_(tick.at) + 4.5, " text-anchor=\"end\"", tick.label);
    }
    for (const auto& tick : x_scale_.ticks(kXTicks)) {
      line(x_scale_(tick.at), kTop, x_scale_(tick.at), kBottom, " stroke=\"#f1f1f1\"");
      line(x_scale_(tick.at), kBottom, x_scale_(tick.at), kBottom + 5, " stroke=\"#888\"");
      words(x_scale_(tick.at), kBottom + 21, " text-anchor=\"middle\"", tick.label);
    }
    line(left_, kBottom, right_, kBottom, " stroke=\"#888\"");
    words((left_ + right_) / 2, kHeight - 16, " font-size=\"14\" text-anchor=\"middle\"", chart_.x_label);
    const std::string middle = place((kTop + kBottom) / 2);
    words(22, (kTop + kBottom) / 2,
          " font-size=\"14\" text-anchor=\"middle\" transform=\"rotate(-90 22 " + middle + ")\"",
          chart_.y_label);
  }

  void draw(const ReferenceLine& reference) {
    if (!drawable(reference.y)) return;
    const double y = y_scale_(reference.y);
    line(left_, y, right_, y, kReferenceStyle);
    labels_.push_back({reference.label, std::string(kReferenceStyle), y});
  }

  void draw(const Series& series, std::size_t index) {
    const std::string colour(kColours[index % std::size(kColours)]);
    const std::string_view dash = kDashes[index / std::size(kColours) % std::size(kDashes)];
    // A long series is usually a noisy one, which must not hide what lies on it.
    const std::string_view width = series.x.size() > kMostBold
                                       ? " stroke-width=\"1.5\" stroke-opacity=\"0.6\""
                                       : " stroke-width=\"2.25\"";
    const std::string style = " stroke=\"" + colour + '"' + std::string(width) + std::string(dash);
    const auto runs = runs_of(series, x_scale_, y_scale_);
    for (const std::vector<Point>& run : runs) {
      out_ << "<polyline fill=\"none\" stroke-linejoin=\"round\" stroke-linecap=\"round\"" << style
           << " points=\"";
      for (const Point& point : run) out_ << place(point.x) << ',' << place(point.y) << ' ';
      out_ << "\"/>\n";
      // A lone point has no line; in a short series the marks show where it was measured.
      if (run.size() > 1 && series.x.size() > kMostMarkers) continue;
      for (const Point& point : run) {
        out_ << "<circle cx=\"" << place(point.x) << "\" cy=\"" << place(point.y) << "\" r=\"3.2\" fill=\""
             << colour << "\" stroke=\"#fff\"/>\n";
      }
    }
    labels_.push_back({series.name, style, runs.empty() ? kBottom : runs.back().back().y});
  }

  void draw(const Label& label) {
    line(right_ + 10, label.y, right_ + 32, label.y, label.line_style);
    words(right_ + 38, label.y + 4.5, " fill=\"#222\"", label.text);
  }

  const Chart& chart_;
  double left_ = 0, right_ = 0;
  Scale x_scale_, y_scale_;
  std::vector<Label> labels_;
  std::ostringstream out_;
};

}  // namespace

std::string draw_chart(const Chart& chart) { return Drawing(chart).text(); }

}  // namespace needle
