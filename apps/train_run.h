// One run of `needle train`, from its options to the report at its end.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/options.h"
#include "needle/train/settings.h"

namespace needle {

/// What the command line says.
struct TrainOptions {
  TrainSettings settings;
  std::string lines, text;
  std::vector<double> betas;
  ComputeOptions compute;
  std::string out, resume;
  bool context_given = false;  ///< else it is made for the task
  bool anomaly = false, graph = false, overwrite = false, json = false;
};

/// Trains to the end, or until `stop` says so, and reports.
void run_training(const TrainOptions& options, const std::function<bool()>& stop);

}  // namespace needle
