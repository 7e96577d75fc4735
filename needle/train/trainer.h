// The training loop: one step, evaluation, saving and going on. It prints nothing; a listener is told.
#pragma once

#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "needle/data/dataset.h"
#include "needle/train/settings.h"

namespace needle {

/// What a step did.
struct StepResult {
  std::int64_t step = 0;  ///< counted from 1
  double loss = 0;        ///< mean over the valid targets of the whole batch, before the step
  double learning_rate = 0;
  double gradient_norm = 0;
  std::int64_t tokens = 0;  ///< real tokens read
  double seconds = 0;
  std::string skipped;  ///< why the optimizer did not step; empty when it did
};

/// A loss over data that is not trained on.
struct Evaluation {
  double loss = 0;  ///< nats per valid target, over all targets alike
  std::int64_t targets = 0;
};

/// A batch as a model reads it.
SequenceInput input_of(const Batch& batch, Device device);
NDArray labels_of(const Batch& batch, Device device);

/// The loss of `batches`, without recording or dropout.
Evaluation evaluate(SequenceModel& model, const std::vector<Batch>& batches, std::int64_t ignore_index,
                    Device device);

/// Trains a decoder on a data set, and can stop and go on as if it had never stopped.
class Trainer {
 public:
  Trainer(const TrainSettings& settings, Dataset& data, Device device = cpu());

  /// One optimizer step over `accumulate` batches, weighed by their valid targets. Without any valid target,
  /// or with a gradient that is not finite, the optimizer keeps its parameters and moments, and the result
  /// says why.
  StepResult step();
  Evaluation evaluate();

  /// Writes all that is needed to go on, and takes it up again. The data must be the same.
  void save(const std::filesystem::path& folder);
  void load(const std::filesystem::path& folder);

  Decoder& model() { return model_; }
  Optimizer& optimizer() { return *optimizer_; }
  Dataset& data() { return data_; }
  const TrainSettings& settings() const { return settings_; }
  std::int64_t steps_done() const { return steps_done_; }
  Device device() const { return device_; }
  /// The least validation loss so far; saved with the run.
  double best_validation() const { return best_validation_; }
  void set_best_validation(double loss) { best_validation_ = loss; }

 private:
  TrainSettings settings_;
  Dataset& data_;
  Device device_;
  Generator random_;
  Decoder model_;
  std::vector<Parameter> parameters_;
  std::unique_ptr<Optimizer> optimizer_;
  DataPosition position_;
  std::int64_t steps_done_ = 0;
  double best_validation_ = std::numeric_limits<double>::infinity();
};

/// Settings and state of a saved run, as its JSON holds them.
struct SavedRun {
  TrainSettings settings;
  Tokenizer tokenizer = Tokenizer::bytes();
};
/// Reads them from a checkpoint folder.
SavedRun load_saved_run(const std::filesystem::path& folder);

}  // namespace needle
