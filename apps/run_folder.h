// The folder of a training run: checkpoints, the best one, the losses as CSV and as a curve.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "needle/train/trainer.h"

namespace needle {

/// One row of losses.csv.
struct HistoryRow {
  StepResult step;
  double tokens_per_second = 0;
  std::optional<double> validation;
};

/// A run on disk. Layout: step-N/ (the newest checkpoint), best/, losses.csv, losses.svg.
class RunFolder {
 public:
  /// A new folder at `path`, or `runs/<name>-<n>` with the next free n. An existing run is an Error unless
  /// `overwrite`.
  static RunFolder create(const std::string& path, const std::string& name, bool overwrite);
  /// The folder of a run that goes on from `step`: later rows of its losses are dropped.
  static RunFolder reopen(const std::filesystem::path& path, std::int64_t step);

  const std::filesystem::path& path() const { return path_; }
  void record(const HistoryRow& row) { history_.push_back(row); }
  const std::vector<HistoryRow>& history() const { return history_; }
  /// Saves the newest checkpoint, then removes older ones.
  std::filesystem::path save(Trainer& trainer);
  void save_best(Trainer& trainer) { trainer.save(path_ / "best"); }
  /// Writes losses.csv.
  void write_losses() const;
  /// Draws losses.svg, with the floor where it is known.
  void draw_curve(std::optional<double> floor) const;

 private:
  explicit RunFolder(std::filesystem::path path) : path_(std::move(path)) {}

  std::filesystem::path path_;
  std::vector<HistoryRow> history_;
};

}  // namespace needle
