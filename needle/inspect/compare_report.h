// What came of a comparison: a table's rows, and one HTML document of everything.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "needle/inspect/compare.h"
#include "needle/inspect/cost.h"

namespace needle {

/// A family's part in a comparison.
struct ComparedFamily {
  std::string name;
  ModelConfig model;
  ModelFacts facts;
  std::vector<std::pair<std::int64_t, double>> growth;  ///< length, operations of a forward pass over a row
  std::vector<ComparedResult> searches, runs;           ///< the runs of the chosen learning rate, by seed
  std::vector<std::string> pictures;                    ///< SVG: who reads whom, what heads look at

  Spread loss() const;
  Spread accuracy() const;
  /// The most of all runs.
  double peak_bytes() const;
  /// Mean accuracy by distance, over the seeds.
  std::vector<std::pair<std::int64_t, double>> by_distance() const;
};

/// All families on one task.
struct Comparison {
  std::string task, data;        ///< its name, and what it is in one line
  std::optional<double> chance;  ///< the accuracy of a guess
  std::vector<ComparedFamily> families;
};

/// What the document says of how it was made.
struct ComparisonOrigin {
  CompareSettings settings;
  nlohmann::json all_settings;  ///< with the data of all tasks
  std::string machine, command, time;
};

/// One self-contained HTML document: loss by step, time and operations, accuracy by distance, costs, pictures
/// and settings of each task.
std::string comparison_html(const std::vector<Comparison>& tasks, const ComparisonOrigin& origin);

/// "all" for 0, otherwise the number: how receptive fields are told.
std::string reach_text(std::int64_t receptive_field);

}  // namespace needle
