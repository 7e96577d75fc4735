// The folder of a training run: the newest checkpoint, the best one, and the losses as CSV.
#pragma once

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "needle/io/files.h"
#include "needle/train/trainer.h"

namespace needle {

/// One row of losses.csv.
struct LossRow {
  std::int64_t step = 0;
  double training_loss = 0;
  std::optional<double> validation_loss;
  double learning_rate = 0, gradient_norm = 0, tokens_per_second = 0;
};

/// What `needle train --watch` writes into a run.
inline constexpr const char* kWatchFile = "watch.csv";

/// A run on disk: step-N/ (the newest checkpoint), best/ (the one with the least validation loss),
/// losses.csv.
class RunFolder {
 public:
  /// A new run in the folder `path`, which is made if it is missing. A run that it holds already is an Error,
  /// or with `overwrite` removed.
  static RunFolder create(const std::filesystem::path& path, bool overwrite = false);
  /// The run in `path`, to go on after `step`. A run that holds a later checkpoint is an Error: going on
  /// would replace it.
  static RunFolder reopen(const std::filesystem::path& path, std::int64_t step);
  /// A new run in `path` that goes on after `step` of the run in `from`, with the losses up to there.
  static RunFolder branch(const std::filesystem::path& from, const std::filesystem::path& path,
                          std::int64_t step, bool overwrite = false);
  /// Whether `path` holds a run.
  static bool is_run(const std::filesystem::path& path);
  /// runs/<name>-<n> with the next free n.
  static std::filesystem::path free_path(const std::string& name);

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path losses_file() const { return path_ / "losses.csv"; }
  /// What `needle train --watch` saw (watch.h), if it did.
  std::filesystem::path watch_file() const { return path_ / kWatchFile; }
  std::filesystem::path best() const { return path_ / "best"; }
  std::filesystem::path checkpoint(std::int64_t step) const;

  /// Adds a row to losses.csv at once.
  void append(const LossRow& row);
  const std::vector<LossRow>& losses() const { return losses_; }
  /// Saves the newest checkpoint, and only then removes older ones.
  void save(Trainer& trainer);
  void save_best(Trainer& trainer) { trainer.save(best()); }

 private:
  explicit RunFolder(std::filesystem::path path) : path_(std::move(path)) {}
  void begin(std::vector<LossRow> losses);

  std::filesystem::path path_;
  std::optional<FolderLock> lock_;
  std::vector<LossRow> losses_;
  std::ofstream file_;
};

}  // namespace needle
