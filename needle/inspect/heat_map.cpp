#include "needle/inspect/heat_map.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <string_view>

#include "backends/error.h"
#include "needle/inspect/svg_text.h"

namespace needle {
namespace {

constexpr std::string_view kKindColours[] = {"#f0f0f0", "#0072b2", "#d55e00"};
constexpr std::string_view kKindBlocks[] = {"·", "█", "×"};
constexpr std::string_view kShades[] = {"·", "░", "▒", "▓", "█"};
constexpr std::size_t kColoursOfAmounts = 32, kLongestLabel = 12;
constexpr double kFont = 12, kLine = 18, kMargin = 12;

void check(const HeatMap& map) {
  const std::size_t rows = map.row_labels.size(), columns = map.column_labels.size();
  require(rows > 0 && columns > 0 && map.values.size() == rows * columns, "heat map: ", map.values.size(),
          " values do not fit ", rows, " x ", columns, " labels");
  require(map.kinds.size() <= std::size(kKindColours), "heat map: at most ", std::size(kKindColours),
          " kinds, got ", map.kinds.size());
  for (const double value : map.values) {
    require(std::isfinite(value) && value >= 0 &&
                (map.kinds.empty() ||
                 (value < static_cast<double>(map.kinds.size()) && value == std::floor(value))),
            "heat map: a value of ", value, " has no colour");
  }
}

double largest(const HeatMap& map) { return *std::ranges::max_element(map.values); }

std::string shortened(const std::string& label) {
  if (character_count(label) <= kLongestLabel) return label;
  std::size_t end = 0, characters = 0;
  for (; characters < kLongestLabel; ++end)
    characters += (static_cast<unsigned char>(label[end]) & 0xC0) != 0x80;
  return label.substr(0, end - 1) + "…";
}

std::size_t longest(const std::vector<std::string>& labels) {
  std::size_t most = 0;
  for (const std::string& label : labels) most = std::max(most, character_count(label));
  return most;
}

/// Every how many labels one is written so that they have `room` each where a cell has `cell`.
std::size_t step_of(double room, double cell) {
  return std::max<std::size_t>(1, static_cast<std::size_t>(std::ceil(room / cell - 1e-9)));
}

// --- SVG -----------------------------------------------------------------------------------------------

/// From pale to dark; exactly 0 has the colour of nothing.
std::string colour_of_amount(double share) {
  if (share == 0) return std::string(kKindColours[0]);
  constexpr double kPale[] = {222, 235, 247}, kDark[] = {8, 48, 107};
  const double steps = static_cast<double>(kColoursOfAmounts - 1);
  const double t = std::round(share * steps) / steps;
  std::string colour = "#";
  for (int i = 0; i < 3; ++i) {
    constexpr std::string_view kHex = "0123456789abcdef";
    const auto level = static_cast<std::size_t>(std::lround(kPale[i] + t * (kDark[i] - kPale[i])));
    colour += {kHex[level / 16], kHex[level % 16]};
  }
  return colour;
}

/// "0.25", "1.3e-5".
std::string amount_text(double value) {
  const bool plain = value == 0 || (value >= 0.01 && value < 1000);
  return digits(value, plain ? std::chars_format::fixed : std::chars_format::scientific, plain ? 2 : 1);
}

struct LegendEntry {
  std::string colour, text;
};
std::vector<LegendEntry> legend_of(const HeatMap& map) {
  std::vector<LegendEntry> entries;
  for (std::size_t kind = 0; kind < map.kinds.size(); ++kind)
    entries.push_back({std::string(kKindColours[kind]), map.kinds[kind]});
  if (!map.kinds.empty()) return entries;
  const double most = largest(map);
  for (const double share : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    entries.push_back({colour_of_amount(share), amount_text(share * most)});
    if (most == 0) break;
  }
  return entries;
}

/// One picture on its way to text.
class Drawing {
 public:
  explicit Drawing(const HeatMap& map)
      : map_(map), rows_(map.row_labels.size()), columns_(map.column_labels.size()) {
    for (const std::string& label : map.row_labels) row_labels_.push_back(shortened(label));
    for (const std::string& label : map.column_labels) column_labels_.push_back(shortened(label));
    const double most = static_cast<double>(std::max(rows_, columns_));
    cell_ = most <= 32 ? std::clamp(360 / most, 13.0, 36.0) : std::max(6.0, 416 / most);
    const auto width_of = [](const std::vector<std::string>& labels) {
      double width = 0;
      for (const std::string& label : labels) width = std::max(width, text_width(label, kFont));
      return width;
    };
    const double wide = width_of(column_labels_) + 4;
    upright_ = wide > 2 * kLine;
    column_step_ = step_of(upright_ ? kFont + 1 : wide, cell_);
    row_step_ = step_of(kFont + 1, cell_);
    left_ = kMargin + kLine + width_of(row_labels_) + 8;
    top_ = kMargin + 2 * kLine + (upright_ ? wide : kLine) + 10;
    width_ = std::max(340.0, left_ + cell_ * static_cast<double>(columns_) + kMargin);
  }

  std::string text() {
    cells();
    labels();
    const double end = legend();
    const double title_size =
        std::min(16.0, 16 * (width_ - 2 * kMargin) / (1.1 * text_width(map_.title, 16) + 1));
    words(kMargin, kMargin + 14, " font-size=\"" + place(title_size) + "\" font-weight=\"600\" fill=\"#111\"",
          map_.title);
    return svg_start(map_.title, width_, std::ceil(end), kFont) + out_.str() + "</svg>\n";
  }

 private:
  void words(double x, double y, std::string_view style, std::string_view words) {
    out_ << "<text x=\"" << place(x) << "\" y=\"" << place(y) << '"' << style << '>' << escaped(words)
         << "</text>\n";
  }
  double x_of(std::size_t column) const { return left_ + cell_ * static_cast<double>(column); }
  double y_of(std::size_t row) const { return top_ + cell_ * static_cast<double>(row); }

  /// All cells of one colour are one path, which keeps large pictures small.
  void cells() {
    const double gap = cell_ >= 10 ? 1 : 0, most = largest(map_);
    std::map<std::string, std::string> paths;
    for (std::size_t row = 0; row < rows_; ++row) {
      for (std::size_t column = 0; column < columns_; ++column) {
        const double value = map_.values[row * columns_ + column];
        const std::string colour = map_.kinds.empty()
                                       ? colour_of_amount(most > 0 ? value / most : 0)
                                       : std::string(kKindColours[static_cast<std::size_t>(value)]);
        const std::string side = place(cell_ - gap);
        paths[colour] +=
            "M" + place(x_of(column)) + " " + place(y_of(row)) + "h" + side + "v" + side + "h-" + side + "z";
      }
    }
    for (const auto& [colour, path] : paths)
      out_ << "<path fill=\"" << colour << "\" d=\"" << path << "\"/>\n";
  }

  void labels() {
    const double middle = cell_ / 2;
    for (std::size_t row = 0; row < rows_; row += row_step_)
      words(left_ - 6, y_of(row) + middle + 0.35 * kFont, " text-anchor=\"end\"", row_labels_[row]);
    for (std::size_t column = 0; column < columns_; column += column_step_) {
      const double x = x_of(column) + middle, y = top_ - 6;
      if (upright_) {
        const std::string turn = place(x + 0.35 * kFont) + " " + place(y);
        words(x + 0.35 * kFont, y, " transform=\"rotate(-90 " + turn + ")\"", column_labels_[column]);
      } else {
        words(x, y, " text-anchor=\"middle\"", column_labels_[column]);
      }
    }
    words(left_, kMargin + 2 * kLine, " fill=\"#111\"", map_.column_title + " →");
    const double x = kMargin + 10, y = top_;
    words(x, y,
          " fill=\"#111\" text-anchor=\"end\" transform=\"rotate(-90 " + place(x) + " " + place(y) + ")\"",
          "← " + map_.row_title);
  }

  /// Writes what the colours mean, in as many lines as it takes; gives the height of the whole.
  double legend() {
    double x = kMargin, y = y_of(rows_) + 14;
    for (const auto& [colour, text] : legend_of(map_)) {
      const double wide = 16 + text_width(text, kFont) + 14;
      if (x > kMargin && x + wide > width_) x = kMargin, y += kLine;
      out_ << "<rect x=\"" << place(x) << "\" y=\"" << place(y) << "\" width=\"11\" height=\"11\" fill=\""
           << colour << "\" stroke=\"#aaa\" stroke-width=\"0.5\"/>\n";
      words(x + 16, y + 10, "", text);
      x += wide;
    }
    return y + kLine + 4;
  }

  const HeatMap& map_;
  std::size_t rows_, columns_, row_step_ = 1, column_step_ = 1;
  std::vector<std::string> row_labels_, column_labels_;
  double cell_ = 0, left_ = 0, top_ = 0, width_ = 0;
  bool upright_ = false;  // column labels are written upwards
  std::ostringstream out_;
};

// --- terminal ------------------------------------------------------------------------------------------

std::string spaces(std::size_t count) { return std::string(count, ' '); }

std::string right_aligned(const std::string& text, std::size_t width) {
  return spaces(width - std::min(width, character_count(text))) + text;
}

std::string repeated(std::string_view text, std::size_t times) {
  std::string result;
  for (; times > 0; --times) result += text;
  return result;
}

std::size_t shade_of(double share) {
  return share == 0 ? 0 : std::clamp<std::size_t>(static_cast<std::size_t>(std::ceil(4 * share)), 1, 4);
}

}  // namespace

std::string draw_heat_map(const HeatMap& map) {
  check(map);
  return Drawing(map).text();
}

std::string heat_map_text(const HeatMap& map) {
  check(map);
  const std::size_t rows = map.row_labels.size(), columns = map.column_labels.size();
  const std::size_t cell = columns <= 32 ? 2 : 1;
  const std::string corner = map.row_title + " \\ " + map.column_title;
  const std::size_t margin = std::max(longest(map.row_labels), character_count(corner));
  const std::size_t step =
      step_of(static_cast<double>(longest(map.column_labels) + 1), static_cast<double>(cell));
  std::string text = right_aligned(corner, margin) + "  ";
  for (std::size_t column = 0; column < columns; column += step) {
    const std::string& label = map.column_labels[column];
    text += label;
    if (column + step < columns) text += spaces(step * cell - character_count(label));
  }
  text += '\n';
  const double most = largest(map);
  for (std::size_t row = 0; row < rows; ++row) {
    text += right_aligned(map.row_labels[row], margin) + "  ";
    for (std::size_t column = 0; column < columns; ++column) {
      const double value = map.values[row * columns + column];
      text += repeated(map.kinds.empty() ? kShades[shade_of(most > 0 ? value / most : 0)]
                                         : kKindBlocks[static_cast<std::size_t>(value)],
                       cell);
    }
    text += '\n';
  }
  text += spaces(margin);
  for (std::size_t kind = 0; kind < map.kinds.size(); ++kind)
    text += "  " + std::string(kKindBlocks[kind]) + " " + map.kinds[kind];
  if (map.kinds.empty()) {
    text += "  · 0";
    for (std::size_t shade = 1; shade < std::size(kShades); ++shade)
      text +=
          "  " + std::string(kShades[shade]) + " to " + amount_text(static_cast<double>(shade) / 4 * most);
  }
  return text + '\n';
}

}  // namespace needle
