// The task of digits drawn in noise.
#include <array>
#include <cmath>
#include <string_view>

#include "needle/data/tasks.h"

namespace needle {

namespace {

constexpr std::int64_t kSide = 16, kPatch = 4, kPatches = (kSide / kPatch) * (kSide / kPatch);

struct Point {
  double x, y;
};

// The strokes of each digit, points as x and y on a grid of 5 x 7; a comma lifts the pen.
constexpr std::array<std::string_view, 10> kStrokes = {"10 30 41 45 36 16 05 01 10",
                                                       "11 20 26",
                                                       "01 10 30 41 42 06 46",
                                                       "01 10 30 41 42 33 44 45 36 16 05,23 33",
                                                       "36 30 04 44",
                                                       "40 00 03 33 44 45 36 16 05",
                                                       "41 30 10 01 05 16 36 45 44 33 13 04",
                                                       "00 40 16",
                                                       "13 02 01 10 30 41 42 33 13 04 05 16 36 45 44 33",
                                                       "42 33 13 02 01 10 30 41 45 36 16 05"};

struct Segment {
  Point from, to;
};

std::vector<Segment> segments_of(std::string_view strokes) {
  std::vector<Segment> segments;
  for (std::size_t at = 0; at + 1 < strokes.size(); at += 3) {
    const Point point{strokes[at] - '0' - 2.0, strokes[at + 1] - '0' - 3.0};
    if (at > 0 && strokes[at - 1] == ' ') segments.back().to = point;
    const bool goes_on = at + 2 < strokes.size() && strokes[at + 2] == ' ';
    if (goes_on) segments.push_back({point, point});
  }
  return segments;
}

double distance(Point point, const Segment& segment) {
  const double dx = segment.to.x - segment.from.x, dy = segment.to.y - segment.from.y;
  const double along =
      ((point.x - segment.from.x) * dx + (point.y - segment.from.y) * dy) / (dx * dx + dy * dy);
  const double place = std::clamp(along, 0.0, 1.0);
  return std::hypot(point.x - segment.from.x - place * dx, point.y - segment.from.y - place * dy);
}

/// A digit as grey values, row by row.
std::vector<double> draw(std::int64_t digit, Generator& random) {
  const auto between = [&](double low, double high) { return low + (high - low) * random.uniform(); };
  constexpr double kMostSlant = 0.25, kMostShift = 1.5;
  const double width = between(1.6, 2.3), height = between(1.3, 1.9),
               slant = between(-kMostSlant, kMostSlant);
  const double middle_x = (kSide - 1) / 2.0 + between(-kMostShift, kMostShift),
               middle_y = (kSide - 1) / 2.0 + between(-kMostShift, kMostShift);
  const double thickness = between(0.6, 1.1), noise = between(0.05, 0.2);
  std::vector<Segment> segments = segments_of(kStrokes[static_cast<std::size_t>(digit)]);
  for (Segment& segment : segments) {
    for (Point* point : {&segment.from, &segment.to})
      *point = {middle_x + width * (point->x - slant * point->y), middle_y + height * point->y};
  }
  const PhiloxStream numbers = random.reserve(kSide * kSide);
  std::vector<double> grey;
  for (std::int64_t pixel = 0; pixel < kSide * kSide; ++pixel) {
    const Point place{static_cast<double>(pixel % kSide), static_cast<double>(pixel / kSide)};
    double nearest = kSide;
    for (const Segment& segment : segments) nearest = std::min(nearest, distance(place, segment));
    // Ink fades out over one pixel at the edge of a stroke.
    grey.push_back(std::clamp(thickness + 0.5 - nearest, 0.0, 1.0) +
                   noise * normal_at(numbers.seed, numbers.position + static_cast<std::uint64_t>(pixel)));
  }
  return grey;
}

void normalise(std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  double mean = 0, variance = 0;
  for (const double value : values) mean += value / count;
  for (const double value : values) variance += (value - mean) * (value - mean) / count;
  for (double& value : values) value = (value - mean) / std::sqrt(variance);
}

}  // namespace

Task shapes_task() {
  Task task;
  task.name = "shapes";
  task.tokenizer = Tokenizer::characters("0123456789");
  task.longest_row = 1 + kPatches;
  task.feature_width = kPatch * kPatch;
  task.chance = 0.1;
  task.remark = "digits drawn in noise, 16 x 16 in patches of 4 x 4; chance is 10 %";
  task.example = [digits = task.tokenizer.encode("0123456789")](Generator& random, DataPart) {
    const std::int64_t digit = random.below(std::ssize(digits));
    std::vector<double> grey = draw(digit, random);
    normalise(grey);
    TaskExample example;
    example.ids.assign(1 + kPatches, kPadId);
    example.labels.assign(1 + kPatches, RowFormat{}.ignore_index);
    example.labels[0] = digits[static_cast<std::size_t>(digit)];
    example.features.assign((1 + kPatches) * kPatch * kPatch, 0);
    for (std::int64_t pixel = 0; pixel < kSide * kSide; ++pixel) {
      const std::int64_t x = pixel % kSide, y = pixel / kSide;
      const std::int64_t patch = y / kPatch * (kSide / kPatch) + x / kPatch;
      const std::int64_t place = y % kPatch * kPatch + x % kPatch;
      example.features[static_cast<std::size_t>((1 + patch) * kPatch * kPatch + place)] =
          static_cast<float>(grey[static_cast<std::size_t>(pixel)]);
    }
    return example;
  };
  return task;
}

}  // namespace needle
