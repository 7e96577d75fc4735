// All runs of a comparison: in order, each kept in a file as soon as it is done.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "needle/inspect/compare_report.h"
#include "needle/io/files.h"

namespace needle {

/// A comparison in a folder: settings.json, runs/<task>/<run>.json, and report.html at its end.
class CompareRuns {
 public:
  /// In `out`, or in the next free runs/compare-<n>. Throws when the folder holds another comparison, or one
  /// that was computed elsewhere or from other data.
  CompareRuns(const CompareSettings& settings, std::vector<DataSettings> tasks, const std::string& out,
              Device device);
  const std::filesystem::path& folder() const { return folder_; }

  /// Trains what is not there yet; `show` is told how far it is, in a line. None when `stopped` says so.
  std::optional<std::vector<Comparison>> run(const std::function<void(const std::string&)>& show,
                                             const std::function<bool()>& stopped);
  /// Writes report.html, with the command that repeats it.
  std::filesystem::path write_report(const std::vector<Comparison>& tasks, const std::string& command) const;

 private:
  /// A family on a task, and what it will take.
  struct Entry {
    ComparedFamily result;
    StepCost cost;
    std::int64_t steps = 0;  ///< of a run
  };
  /// The families on a task, with steps by the budget; as it was planned before where there is a plan.
  std::vector<Entry> plan(const std::string& task, Dataset& data);
  /// The result of a run, from its file or by training; none when it was stopped.
  std::optional<ComparedResult> result_of(const std::string& task, Entry& entry, const ComparedRun& run,
                                          Dataset& data);
  bool tell(const std::string& text, double seconds_of_this);

  CompareSettings settings_;
  std::vector<DataSettings> tasks_;
  std::vector<std::unique_ptr<Dataset>> data_;  // of each task
  nlohmann::json all_settings_;
  std::filesystem::path folder_;
  std::optional<FolderLock> lock_;
  Device device_;
  std::function<void(const std::string&)> show_;
  std::function<bool()> stopped_;
  double all_seconds_ = 0, done_seconds_ = 0;  // expected ones
  double started_ = 0, skipped_seconds_ = 0;
};

}  // namespace needle
