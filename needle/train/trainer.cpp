#include "needle/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "needle/io/checkpoint.h"

namespace needle {

namespace {

constexpr std::int64_t kIgnoreIndex = -100;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TrainSettings with_vocabulary(TrainSettings settings, const Dataset& data) {
  settings.validate();
  settings.model.vocabulary = data.tokenizer().vocabulary_size();
  settings.model = settings.model.resolved();
  return settings;
}

}  // namespace

SequenceInput input_of(const Batch& batch, Device device) {
  const Shape shape{batch.rows, batch.time};
  SequenceInput input{
      NDArray::from(batch.ids, shape, device), {}, NDArray::from(batch.positions, shape, device)};
  const bool padded = std::find(batch.real.begin(), batch.real.end(), 0) != batch.real.end();
  if (padded) input.real = NDArray::from(batch.real, shape, device);
  return input;
}

NDArray labels_of(const Batch& batch, Device device) {
  return NDArray::from(batch.labels, {batch.rows, batch.time}, device);
}

Evaluation evaluate(SequenceModel& model, const std::vector<Batch>& batches, std::int64_t ignore_index,
                    Device device) {
  const NoGrad off;
  LossOptions sum;
  sum.settings.ignore_index = ignore_index;
  sum.divisor = 1;
  Evaluation result;
  double total = 0;
  for (const Batch& batch : batches) {
    total += cross_entropy(model.forward(input_of(batch, device)), labels_of(batch, device), sum).item();
    result.targets += batch.valid_targets;
  }
  result.loss = result.targets > 0 ? total / static_cast<double>(result.targets) : 0;
  return result;
}

Trainer::Trainer(const TrainSettings& settings, Dataset& data, Device device)
    : settings_(with_vocabulary(settings, data)),
      data_(data),
      device_(device),
      random_(static_cast<std::uint64_t>(settings.seed)),
      model_(settings_.model, random_, device),
      parameters_(model_.parameters()),
      optimizer_(make_optimizer(settings_, parameters_)) {}

StepResult Trainer::step() {
  const auto start = std::chrono::steady_clock::now();
  StepResult result;
  result.learning_rate = settings_.schedule().rate(steps_done_);
  result.step = ++steps_done_;
  std::vector<Batch> batches;
  std::int64_t valid = 0;
  for (std::int64_t part = 0; part < settings_.accumulate; ++part) {
    batches.push_back(data_.next_training_batch(position_, settings_.batch));
    valid += batches.back().valid_targets;
    result.tokens += std::count(batches.back().real.begin(), batches.back().real.end(), 1);
  }
  if (valid == 0) {
    result.skipped = "no target of the batch counts";
    return result;
  }
  LossOptions loss;
  loss.settings = {kIgnoreIndex, settings_.label_smoothing};
  loss.divisor = static_cast<double>(valid);
  const Pass pass{true, &random_};
  for (const Batch& batch : batches) {
    const Tensor part =
        cross_entropy(model_.forward(input_of(batch, device_), pass), labels_of(batch, device_), loss);
    result.loss += part.item();
    part.backward();
  }
  const GradientNorm norm = gradient_norm(parameters_, settings_.clip);
  result.gradient_norm = norm.norm;
  if (norm.finite)
    optimizer_->step(result.learning_rate, norm.scale);
  else
    result.skipped = "the gradient of " + norm.first_bad + " is not finite";
  optimizer_->clear_gradients();
  result.seconds = seconds_since(start);
  return result;
}

Evaluation Trainer::evaluate() {
  return needle::evaluate(model_, data_.validation_batches(settings_.batch), kIgnoreIndex, device_);
}

void Trainer::save(const std::filesystem::path& folder) {
  nlohmann::json json;
  json["format"] = "needle checkpoint 1";
  json["model"] = settings_.model;
  json["training"] = settings_;
  json["tokenizer"] = data_.tokenizer().to_json();
  json["state"] = {{"step", steps_done_},
                   {"optimizer_steps", optimizer_->steps()},
                   {"examples_seen", position_.examples_seen},
                   {"random_seed", random_.seed()},
                   {"random_position", random_.position()},
                   {"data_hash", data_.hash()},
                   {"best_validation",
                    std::isfinite(best_validation_) ? nlohmann::json(best_validation_) : nlohmann::json()}};
  save_checkpoint(folder, json, model_, *optimizer_);
}

void Trainer::load(const std::filesystem::path& folder) {
  const nlohmann::json json = load_settings(folder);
  try {
    const nlohmann::json& state = json.at("state");
    require(state.at("data_hash").get<std::uint64_t>() == data_.hash(), folder.string(),
            ": the run was trained on other data than this; give it the file it began with");
    load_model(folder, model_);
    load_optimizer(folder, *optimizer_);
    optimizer_->set_steps(state.at("optimizer_steps").get<std::int64_t>());
    steps_done_ = state.at("step").get<std::int64_t>();
    position_.examples_seen = state.at("examples_seen").get<std::int64_t>();
    random_ = Generator(state.at("random_seed").get<std::uint64_t>(),
                        state.at("random_position").get<std::uint64_t>());
    const nlohmann::json& best = state.at("best_validation");
    best_validation_ = best.is_null() ? std::numeric_limits<double>::infinity() : best.get<double>();
  } catch (const nlohmann::json::exception& error) {
    fail(folder.string(), ": the state in its checkpoint.json is damaged: ", error.what());
  }
}

SavedRun load_saved_run(const std::filesystem::path& folder) {
  const nlohmann::json json = load_settings(folder);
  try {
    SavedRun run;
    run.settings = json.at("training").get<TrainSettings>();
    run.settings.model = json.at("model").get<DecoderConfig>();
    run.tokenizer = Tokenizer::from_json(json.at("tokenizer"));
    return run;
  } catch (const nlohmann::json::exception& error) {
    fail(folder.string(), ": its checkpoint.json is damaged: ", error.what());
  }
}

}  // namespace needle
