// One model in training: a step, an evaluation, saving, and going on. It prints nothing.
#pragma once

#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "needle/data/dataset.h"
#include "needle/train/settings.h"

namespace needle {

/// What a step did.
struct StepResult {
  std::int64_t step = 0;     ///< counted from 1
  double loss = 0;           ///< mean over the valid targets of the whole accumulated batch, before the step
  double learning_rate = 0;  ///< of this step
  double gradient_norm = 0;  ///< before clipping
  std::int64_t tokens = 0;   ///< real tokens read
  double seconds = 0;
  std::string skipped;  ///< why the optimizer did not step; empty when it did

  double tokens_per_second() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
};

/// How many targets of one distance there were, and how many the likeliest token hit.
struct Hits {
  std::int64_t hit = 0, targets = 0;
  double share() const { return targets > 0 ? static_cast<double>(hit) / static_cast<double>(targets) : 0; }
};

/// A model over data that is not trained on.
struct Evaluation {
  double loss = 0;  ///< nats per valid target, all targets weighing the same
  std::int64_t targets = 0;
  Hits tokens, rows;                         ///< a row is hit where all its targets are
  std::map<std::int64_t, Hits> by_distance;  ///< where the data says how far back lies what tells a target
};

/// A batch as a model reads it, and its labels, i64 [rows, time].
SequenceInput input_of(const Batch& batch, Device device);
NDArray labels_of(const Batch& batch, Device device);

/// Loss and hits over `batches`, without recording and without dropout.
Evaluation evaluate(SequenceModel& model, const std::vector<Batch>& batches, Device device);

/// Trains a sequence model on a data set, and can be saved and go on as if it had never stopped.
class Trainer {
 public:
  /// The model's vocabulary and features are those of `data`, which must outlive the trainer. Throws on
  /// impossible settings, and on a model that cannot read such data.
  Trainer(const TrainSettings& settings, Dataset& data, Device device = cpu());

  /// One optimizer step over `accumulate` batches, weighed by their valid targets (S15). Without any valid
  /// target, or with a gradient that is not finite, parameters and moments stay, and the result says why.
  StepResult step() {
    begin_step();
    return finish_steps().back();
  }
  /// The same without waiting for the device.
  void begin_step();
  /// Has the device record a step, after two that warm it up, and replay it for all batches of that shape,
  /// with the same results. Throws where it cannot.
  void record_steps();
  /// Whether another step may be begun before finish_steps().
  bool may_begin() const { return begun_.size() < kMostBegun; }
  /// Waits, and tells of all steps that were begun since it was called before.
  std::vector<StepResult> finish_steps();
  /// Everything of the next step but the optimizer's part, without a trace: how long a step will take.
  StepResult rehearse_step();
  /// The loss of the validation data; the least one so far is remembered.
  Evaluation evaluate();

  /// Writes all that it takes to go on: tensors, random stream, place in the data, settings, tokenizer.
  void save(const std::filesystem::path& folder);
  /// Takes it up again, exactly. Throws, before anything changes, unless the data is the same.
  void load(const std::filesystem::path& folder);

  SequenceModel& model() { return *model_; }
  const Optimizer& optimizer() const { return *optimizer_; }
  const Dataset& data() const { return data_; }
  const TrainSettings& settings() const { return settings_; }
  Device device() const { return device_; }
  std::int64_t steps_done() const { return steps_done_; }
  /// The least validation loss so far; infinite before the first evaluation.
  double best_validation() const { return best_validation_; }

 private:
  /// The batches of a step on the device.
  struct StepInput {
    std::vector<SequenceInput> inputs;
    std::vector<NDArray> labels;
    std::int64_t valid_targets = 0, tokens = 0;
    bool fits(const StepInput& other) const;
    void assign(const StepInput& other);
  };
  StepInput next_input(DataPosition& position);
  /// The loss, whose gradients are added.
  NDArray add_gradients(const StepInput& input, Generator& random);
  /// Gradients, clipping and the optimizer's step, for which nothing waits.
  void do_step(const StepInput& input);
  void do_recorded_step(const StepInput& input);

  TrainSettings settings_;
  Dataset& data_;
  Device device_;
  Generator random_;
  std::unique_ptr<SequenceModel> model_;
  std::vector<Parameter> parameters_;
  std::unique_ptr<Optimizer> optimizer_;
  DataPosition position_;
  static constexpr std::size_t kMostBegun = 256;
  NDArray loss_;  // of the last step, f32 []
  std::unique_ptr<Recording> recording_;
  std::optional<StepInput> recorded_;                     // what the recorded step reads
  std::vector<NDArray> recorded_copies_;                  // of parameters in 16 bits, which it writes too
  std::uint64_t recorded_from_ = 0, recorded_draws_ = 0;  // of the random stream
  std::vector<StepResult> begun_;                         // steps whose results lie in history_
  NDArray history_;                                       // f64 [steps, loss and the numbers of a StepState]
  double begun_since_ = 0;
  std::int64_t steps_done_ = 0;
  double best_validation_ = std::numeric_limits<double>::infinity();
};

/// What the JSON of a checkpoint says of the run and its tokens.
struct SavedRun {
  TrainSettings settings;
  Tokenizer tokenizer;
};
/// Reads it from a checkpoint folder. Throws when it is damaged.
SavedRun load_saved_run(const std::filesystem::path& folder);

}  // namespace needle
