// The training loop: steps, evaluations and checkpoints, up to the last step or until it is told to stop.
#pragma once

#include <functional>
#include <optional>

#include "needle/train/run_folder.h"
#include "needle/train/trainer.h"

namespace needle {

/// Whom the loop tells, and asks.
struct TrainingEvents {
  /// After each step, with the validation loss where it was measured.
  std::function<void(const StepResult&, std::optional<double> validation_loss)> on_step;
  /// Asked after each step: whether to save and stop.
  std::function<bool()> stop;
  /// Asked before each step, counted from 1: who watches it (needle/observer.h), if anyone.
  std::function<Observer*(std::int64_t step)> observer = {};
};

/// Trains to the last step, which is evaluated and saved in any case; on the way there evaluates and saves as
/// often as the settings say. False when it was stopped before.
bool train(Trainer& trainer, RunFolder& run, const TrainingEvents& events = {});

}  // namespace needle
