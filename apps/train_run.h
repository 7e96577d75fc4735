// One run of `needle train`.
#pragma once

#include <string>
#include <vector>

#include "needle/train/settings.h"

namespace needle {

/// What the command line says.
struct TrainOptions {
  TrainSettings settings = default_settings();
  std::string lines, text;
  std::vector<double> betas;
  std::string device = "cpu", out, resume;
  int threads = 0;
  bool anomaly = false, overwrite = false, json = false;

  /// A decoder and a schedule that learn the built-in corpus in about two minutes on two cores.
  static TrainSettings default_settings();
};

/// Trains to the end, or until stop_requested(). Returns the exit code.
int run_training(TrainOptions options);

/// Whether the user has asked to stop (Ctrl-C).
bool stop_requested();

}  // namespace needle
