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
  std::string out, resume, from;
  std::vector<std::string> model_given;  ///< names of the model's settings that the command line gives
  bool context_given = false;            ///< else it is made for the task
  std::int64_t watch = 0;                ///< steps from one look inside to the next; 0: none
  bool anomaly = false, graph = false, overwrite = false, json = false;
};

/// Trains to the end, or until `stop` says so, and reports.
void run_training(const TrainOptions& options, const std::function<bool()>& stop);

}  // namespace needle
