// What `needle cost` found out, and how it is shown.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "apps/options.h"
#include "needle/inspect/cost.h"
#include "needle/train/settings.h"

namespace needle {

/// What to measure.
struct CostOptions {
  ComputeOptions compute;
  std::string checkpoint;  ///< whose model it is; empty: no one's
  ModelConfig model = small_decoder();
  PassSizes sizes{1, 64, 0};
  std::int64_t new_tokens = 16;
  bool json = false;
};

/// The lengths that are compared, as multiples of the first.
inline constexpr std::array<std::int64_t, 3> kGrowth{1, 2, 4};

/// What was measured of a model; what would take too long is left out.
struct Measured {
  std::array<std::optional<CountedPass>, kGrowth.size()> forward;
  std::optional<CountedPass> training;
  std::optional<CountedDecoding> decoding;
};

/// A formula's value beside what was counted.
struct CostRow {
  std::string name;
  double formula;
  std::optional<double> counted;
  std::string difference;  ///< "equal", or how much and why; "" where nothing was counted
  bool explained;
};

/// What was found out; `decoding` is empty for a model that cannot go on from a past.
struct CostReport {
  CostOptions options;
  Measured measured;
  std::vector<CostRow> parts, decoding;
};

/// The same sizes with the lengths so many times as long.
PassSizes longer(PassSizes sizes, std::int64_t times);
/// A whole number with commas.
std::string whole(double number);

/// Prints it for people.
void print_cost(const CostReport& report);
/// Prints it as one JSON object.
void print_cost_json(const CostReport& report);

}  // namespace needle
