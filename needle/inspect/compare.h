// Families of sequence models on one task under one budget: who takes part, one training run, and what came
// of all of them.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "needle/train/names_of_choices.h"
#include "needle/train/trainer.h"

namespace needle {

/// What all models of a comparison have alike, beside about as many parameters.
enum class Budget { steps, operations, seconds };
inline ChoiceNames<Budget> names_of(Budget) {
  return {{"steps", Budget::steps}, {"operations", Budget::operations}, {"seconds", Budget::seconds}};
}

/// All that a comparison is.
struct CompareSettings {
  TrainSettings training;  ///< data, batch, optimizer; `steps` of each run, its learning rate searched for
  std::vector<std::string> models{"rnn", "gru", "lstm", "convolution", "dilated", "attention"};
  std::int64_t parameters = 50000;
  Budget budget = Budget::steps;
  double operations =
      0;                ///< of a whole run, with that budget; 0: what `steps` take on average over the models
  double seconds = 20;  ///< of a whole run, with that budget
  std::vector<double> learning_rates{1e-3, 3e-3, 1e-2};
  double search_share = 0.5;  ///< of a run's steps, with which the rates are searched
  std::int64_t seeds = 3;
  std::int64_t points = 10;  ///< evaluations of a run; of a search, one
  std::int64_t layers = 0;   ///< 0: what suits the family

  /// Throws an Error that names the setting when one is impossible.
  void validate() const;
};
nlohmann::json to_json_value(const CompareSettings& settings);

/// The families by name.
std::vector<std::string> known_families();
/// A family's model of about so many parameters (within 5 %), for that data: its width is searched, and
/// attention's inner width. Convolutions read `kernel` positions, dilated ones 1, 2, 4, ... steps apart.
/// Throws when there is no such family, or none so small.
ModelConfig model_of_family(const std::string& family, const CompareSettings& settings, const Dataset& data);

/// One training run of a comparison.
struct ComparedRun {
  std::string family;
  double learning_rate = 0;
  std::int64_t seed = 1, steps = 0;
  bool search = false;  ///< one of those by which the learning rate is chosen

  /// What tells it from all others of the comparison; a file's name.
  std::string name() const;
};

/// Where a run stood.
struct ComparedPoint {
  std::int64_t step = 0;
  double seconds = 0, operations = 0;  ///< since the start, evaluations left out
  double training_loss = 0, validation_loss = 0, accuracy = 0;
};

/// What came of a run.
struct ComparedResult {
  ComparedRun run;
  std::vector<ComparedPoint> points;
  std::vector<std::pair<std::int64_t, Hits>> by_distance;
  double loss = 0, accuracy = 0, rows_accuracy = 0;  ///< of the validation data, at the end
  double tokens_per_second = 0, peak_bytes = 0;
};
void to_json(nlohmann::json& json, const ComparedResult& result);
void from_json(const nlohmann::json& json, ComparedResult& result);

/// What a training step takes, the mean over some.
struct StepCost {
  double seconds = 0, operations = 0;  ///< of its products, counted
};
StepCost measure_step(const ModelConfig& model, const CompareSettings& settings, Dataset& data,
                      Device device);

/// Trains one. `on_step` is called after each step, with how many are done; false of it stops, and then there
/// is no result. `at_end` sees the trained model.
std::optional<ComparedResult> run_compared(const ComparedRun& run, const ModelConfig& model,
                                           const CompareSettings& settings, Dataset& data,
                                           double operations_per_step, Device device,
                                           const std::function<bool(std::int64_t)>& on_step,
                                           const std::function<void(SequenceModel&)>& at_end = {});

/// The mean and the spread (sample deviation; 0 for a single one) of some numbers.
struct Spread {
  double mean = 0, deviation = 0;
};
Spread spread_of(const std::vector<double>& numbers);

}  // namespace needle
