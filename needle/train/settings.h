// Everything that defines a training run, as saved in its checkpoints.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "needle/data/sources.h"
#include "needle/models/decoder.h"
#include "needle/optim/optimizer.h"
#include "needle/optim/schedule.h"

namespace needle {

/// Where the training data comes from: sentences, a file, or a built-in task.
enum class DataSource { corpus, lines, text, copy, recall, brackets, translation, shapes };
/// Whether it is a file's lines or text.
bool is_file(DataSource source);
/// Whether it is a task, whose examples ask and answer rather than going on as a text does.
bool is_task(DataSource source);
/// How parameters are stepped.
enum class OptimizerKind { sgd, adam, adamw };

/// What is trained on.
struct DataSettings {
  DataSource source = DataSource::corpus;
  std::string file;  ///< of lines or text
  Tokenizer::Kind tokens = Tokenizer::Kind::characters;
  double validation = 0.1;  ///< share of the file
  /// How far back the tasks copy, recall and brackets ask; 0: the task's default.
  std::int64_t distance = 0;
  std::string from;          ///< the checkpoint whose weights and tokens the run began with; empty: none
  std::int64_t context = 0;  ///< positions of a row or window of a file; 0: as many as the model reads

  /// The name of the source, or the file's without its ending.
  std::string name() const;
};

/// The decoder that the default run trains.
ModelConfig small_decoder();

/// A whole run. The defaults learn the built-in corpus in about two minutes on two cores.
struct TrainSettings {
  DataSettings data;
  ModelConfig model = small_decoder();  ///< its vocabulary is the data's
  OptimizerKind optimizer = OptimizerKind::adamw;
  std::int64_t steps = 5000;
  std::int64_t batch = 16;      ///< examples of one pass
  std::int64_t accumulate = 1;  ///< passes of one step
  double learning_rate = 2e-3, final_learning_rate = 2e-5;
  std::int64_t warmup = 100;
  Decay decay = Decay::cosine;
  double beta1 = 0.9, beta2 = 0.98;
  double momentum = 0.9;
  double weight_decay = 0.01;
  double clip = 1;  ///< limit of the gradient's norm; 0: none
  double label_smoothing = 0;
  DType precision = DType::f32;  ///< of the operands of products, and of activations between them
  bool half_residual = false;    ///< keeps the residual stream in that type too
  double mask_fraction = 0.15;   ///< of the tokens, which an encoder has to tell
  std::int64_t seed = 1;
  std::int64_t evaluate_every = 500, save_every = 1000;

  Schedule schedule() const { return {learning_rate, final_learning_rate, warmup, steps, decay}; }
  /// Throws an Error that names the setting when one is impossible.
  void validate() const;
};

/// All but the model's settings, which stand beside them in a checkpoint. Reading throws on unknown names and
/// impossible values.
void to_json(nlohmann::json& json, const TrainSettings& settings);
void from_json(const nlohmann::json& json, TrainSettings& settings);

/// The data that the settings describe, a file by `tokenizer` where it is known already. Throws when its file
/// cannot be read.
std::unique_ptr<Dataset> make_dataset(const TrainSettings& settings,
                                      const std::optional<Tokenizer>& tokenizer = {});
/// The optimizer that the settings describe.
std::unique_ptr<Optimizer> make_optimizer(const TrainSettings& settings,
                                          const std::vector<Parameter>& parameters);

}  // namespace needle
