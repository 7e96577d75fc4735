// What `needle train` tells: before the run, while it runs, and at its end.
#pragma once

#include "apps/run_folder.h"
#include "apps/terminal.h"

namespace needle {

/// Writes results to stdout, as text or as one JSON object a line, and progress to stderr.
class TrainReport {
 public:
  explicit TrainReport(bool json) : json_(json) {}
  /// Model, data, loss at step 0, libraries and the estimate, before the first step.
  void start(Trainer& trainer, const RunFolder& run, double estimated_seconds);
  void step(const HistoryRow& row, double seconds_left);
  void finish(Trainer& trainer, const RunFolder& run);
  void stopped(Trainer& trainer, const RunFolder& run);

 private:
  bool json_;
  LiveLine live_;
  double last_validation_ = 0;
};

}  // namespace needle
