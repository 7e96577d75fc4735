#include "needle/train/settings.h"

#include "needle/data/masking.h"

#include <cmath>
#include <filesystem>

#include "needle/data/tasks.h"
#include "needle/data/utf8.h"
#include "needle/models/each_setting.h"
#include "needle/train/names_of_choices.h"

namespace needle {

namespace {

/// Every saved setting beside the model's, by its name.
const auto each_setting = [](auto& s, const auto& visit) {
  visit("source", s.data.source);
  visit("file", s.data.file);
  visit("tokens", s.data.tokens);
  visit("validation", s.data.validation);
  visit("distance", s.data.distance);
  visit("from", s.data.from);
  visit("data_context", s.data.context);
  visit("optimizer", s.optimizer);
  visit("steps", s.steps);
  visit("batch", s.batch);
  visit("accumulate", s.accumulate);
  visit("learning_rate", s.learning_rate);
  visit("final_learning_rate", s.final_learning_rate);
  visit("warmup", s.warmup);
  visit("decay", s.decay);
  visit("beta1", s.beta1);
  visit("beta2", s.beta2);
  visit("momentum", s.momentum);
  visit("weight_decay", s.weight_decay);
  visit("clip", s.clip);
  visit("label_smoothing", s.label_smoothing);
  visit("precision", s.precision);
  visit("half_residual", s.half_residual);
  visit("mask_fraction", s.mask_fraction);
  visit("seed", s.seed);
  visit("evaluate_every", s.evaluate_every);
  visit("save_every", s.save_every);
};

}  // namespace

ModelConfig small_decoder() {
  ModelConfig config;
  config.context = 80;
  config.layers = 3;
  config.positions = Positions::rotary;
  return config;
}

void TrainSettings::validate() const {
  const auto at_least = [](const char* name, double value, double least) {
    require(std::isfinite(value), "train: ", name, " must be finite, got ", value);
    require(value >= least, "train: ", name, " must be at least ", least, ", got ", value);
  };
  at_least("steps", static_cast<double>(steps), 1);
  at_least("batch", static_cast<double>(batch), 1);
  require(batch <= 1'000'000, "train: batch must be at most 1000000, got ", batch);
  at_least("accumulate", static_cast<double>(accumulate), 1);
  at_least("warmup", static_cast<double>(warmup), 0);
  at_least("evaluate-every", static_cast<double>(evaluate_every), 1);
  at_least("save-every", static_cast<double>(save_every), 1);
  at_least("learning-rate", learning_rate, 0);
  at_least("final-learning-rate", final_learning_rate, 0);
  at_least("weight-decay", weight_decay, 0);
  at_least("clip", clip, 0);
  at_least("seed", static_cast<double>(seed), 0);
  require(label_smoothing >= 0 && label_smoothing <= 1, "train: label-smoothing must be in [0, 1], got ",
          label_smoothing);
  require(mask_fraction > 0 && mask_fraction <= 1, "train: mask-fraction must be in (0, 1], got ",
          mask_fraction);
  require(!half_residual || is_half(precision),
          "train: half-residual keeps the residual stream as narrow as products are; it wants precision bf16 "
          "or f16");
  require(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1, "train: betas must be in [0, 1), got ", beta1,
          " and ", beta2);
  require(momentum >= 0 && momentum < 1, "train: momentum must be in [0, 1), got ", momentum);
  for (const std::string& name : {data.file, data.from})
    require(repair_utf8(name) == name, "train: the name of a file is not UTF-8: ", repair_utf8(name));
  at_least("context", static_cast<double>(data.context), 0);
  at_least("distance", static_cast<double>(data.distance), 0);
  const bool asks_back = data.source == DataSource::copy || data.source == DataSource::recall ||
                         data.source == DataSource::brackets;
  require(data.distance == 0 || asks_back, "train: distance is for the tasks copy, recall and brackets, not ",
          name_of_choice(data.source));
  require(data.validation > 0 && data.validation < 1, "train: validation must be in (0, 1), got ",
          data.validation);
}

void to_json(nlohmann::json& json, const TrainSettings& settings) {
  json = settings_to_json(settings, each_setting);
}

void from_json(const nlohmann::json& json, TrainSettings& settings) {
  nlohmann::json complete = json;
  if (complete.is_object()) {  // runs of before there was a choice
    complete.emplace("precision", "f32");
    complete.emplace("half_residual", false);
    complete.emplace("mask_fraction", 0.15);
    complete.emplace("distance", 0);
    complete.emplace("from", "");
    complete.emplace("data_context", 0);
  }
  settings_from_json("training settings", complete, settings, each_setting);
  settings.validate();
}

bool is_file(DataSource source) { return source == DataSource::lines || source == DataSource::text; }
bool is_task(DataSource source) { return source != DataSource::corpus && !is_file(source); }

std::string DataSettings::name() const {
  return is_file(source) ? std::filesystem::path(file).stem().string() : name_of_choice(source);
}

namespace {

Task task_of(const DataSettings& data) {
  switch (data.source) {
    case DataSource::copy:
      return copy_task(data.distance);
    case DataSource::recall:
      return recall_task(data.distance);
    case DataSource::brackets:
      return brackets_task(data.distance);
    case DataSource::translation:
      return translation_task();
    case DataSource::shapes:
      return shapes_task();
    case DataSource::corpus:
    case DataSource::lines:
    case DataSource::text:
      break;
  }
  fail("train: ", name_of_choice(data.source), " is no task");
}

}  // namespace

namespace {

std::unique_ptr<Dataset> make_plain_dataset(const TrainSettings& settings,
                                            const std::optional<Tokenizer>& tokenizer) {
  const auto seed = static_cast<std::uint64_t>(settings.seed);
  if (is_task(settings.data.source)) return std::make_unique<GeneratedDataset>(task_of(settings.data), seed);
  FileOptions options;
  options.tokens = settings.data.tokens;
  options.validation_share = settings.data.validation;
  options.tokenizer = tokenizer;
  options.format.context = settings.data.context > 0 ? settings.data.context : settings.model.context;
  options.seed = seed;
  if (settings.data.source == DataSource::lines) return rows_from_file(settings.data.file, options);
  if (settings.data.source == DataSource::text) return stream_from_file(settings.data.file, options);
  constexpr std::int64_t kTrainingSentences = 100000, kValidationSentences = 1000;
  return rows_from_corpus(seed, kTrainingSentences, kValidationSentences, options.format);
}

}  // namespace

std::unique_ptr<Dataset> make_dataset(const TrainSettings& settings,
                                      const std::optional<Tokenizer>& tokenizer) {
  std::unique_ptr<Dataset> data = make_plain_dataset(settings, tokenizer);
  // Who reads both ways would only have to look at the next token.
  const bool masks = settings.model.kind == ModelKind::encoder &&
                     settings.data.source != DataSource::brackets && !data->has_source() &&
                     data->feature_width() == 0;
  if (!masks) return data;
  return std::make_unique<MaskedDataset>(std::move(data), settings.mask_fraction,
                                         static_cast<std::uint64_t>(settings.seed));
}

std::unique_ptr<Optimizer> make_optimizer(const TrainSettings& settings,
                                          const std::vector<Parameter>& parameters) {
  std::vector<ParameterGroup> groups = groups_by_rank(parameters, settings.weight_decay);
  if (settings.optimizer == OptimizerKind::sgd)
    return std::make_unique<Sgd>(std::move(groups), settings.momentum);
  const AdamDecay decay =
      settings.optimizer == OptimizerKind::adam ? AdamDecay::coupled : AdamDecay::decoupled;
  return std::make_unique<Adam>(std::move(groups), decay, settings.beta1, settings.beta2);
}

}  // namespace needle
