#include "needle/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "backends/clock.h"
#include "needle/io/checkpoint.h"
#include "needle/precision.h"

namespace needle {

namespace {

using nlohmann::json;

constexpr const char* kFormat = "needle checkpoint 1";

TrainSettings with_vocabulary(TrainSettings settings, const Dataset& data) {
  settings.validate();
  settings.model.vocabulary = data.tokenizer().vocabulary_size();
  settings.model = settings.model.resolved();
  return settings;
}

/// The JSON file of a checkpoint, with any damage turned into one message.
template <class F>
auto read_checkpoint(const std::filesystem::path& folder, const F& read) {
  const json saved = load_settings(folder);
  try {
    const json& format = saved.at("format");
    require(format == kFormat, folder.string(), ": its format is ", format.dump(), ", wanted ",
            json(kFormat).dump());
    return read(saved);
  } catch (const json::exception& error) {
    fail(folder.string(), ": its ", kSettingsFile, " is damaged: ", error.what());
  }
}

}  // namespace

SequenceInput input_of(const Batch& batch, Device device) {
  const Shape shape{batch.rows, batch.time};
  const bool padded = std::ranges::find(batch.real, 0) != batch.real.end();
  return {NDArray::from(batch.ids, shape, device),
          padded ? NDArray::from(batch.real, shape, device) : NDArray(),
          NDArray::from(batch.positions, shape, device)};
}

NDArray labels_of(const Batch& batch, Device device) {
  return NDArray::from(batch.labels, {batch.rows, batch.time}, device);
}

Evaluation evaluate(SequenceModel& model, const std::vector<Batch>& batches, Device device) {
  const NoGrad off;
  LossOptions sum;
  sum.divisor = 1;
  Evaluation result;
  double total = 0;
  for (const Batch& batch : batches) {
    total += model.loss(input_of(batch, device), labels_of(batch, device), sum).item();
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

StepResult Trainer::add_gradients(DataPosition& position, Generator& random) {
  const PrecisionScope precision(settings_.precision);
  StepResult result;
  std::vector<Batch> batches;
  std::int64_t valid = 0;
  for (std::int64_t part = 0; part < settings_.accumulate; ++part) {
    const Batch& batch = batches.emplace_back(data_.next_training_batch(position, settings_.batch));
    valid += batch.valid_targets;
    result.tokens += std::ranges::count(batch.real, 1);
  }
  if (valid == 0) {
    result.skipped = "no target of the batch counts";
    return result;
  }
  LossOptions loss;
  loss.settings.label_smoothing = settings_.label_smoothing;
  loss.divisor = static_cast<double>(valid);
  const Pass pass{true, &random};
  for (const Batch& batch : batches) {
    const Tensor part = model_.loss(input_of(batch, device_), labels_of(batch, device_), loss, pass);
    result.loss += part.item();
    part.backward();
  }
  return result;
}

StepResult Trainer::step() {
  const double start = now();
  StepResult result = add_gradients(position_, random_);
  result.learning_rate = settings_.schedule().rate(steps_done_);
  result.step = ++steps_done_;
  const GradientNorm norm = gradient_norm(parameters_, settings_.clip);
  result.gradient_norm = norm.norm;
  if (!norm.finite) result.skipped = "the gradient of " + norm.first_bad + " is not finite";
  if (result.skipped.empty()) optimizer_->step(result.learning_rate, norm.scale);
  optimizer_->clear_gradients();
  result.seconds = (now() - start);
  return result;
}

StepResult Trainer::rehearse_step() {
  const double start = now();
  DataPosition position = position_;
  Generator random = random_;
  StepResult result = add_gradients(position, random);
  result.gradient_norm = gradient_norm(parameters_, settings_.clip).norm;
  optimizer_->clear_gradients();
  result.seconds = (now() - start);
  return result;
}

Evaluation Trainer::evaluate() {
  const PrecisionScope precision(settings_.precision);
  const Evaluation result = needle::evaluate(model_, data_.validation_batches(settings_.batch), device_);
  best_validation_ = std::min(best_validation_, result.loss);
  return result;
}

void Trainer::save(const std::filesystem::path& folder) {
  json state{{"step", steps_done_},
             {"optimizer_steps", optimizer_->steps()},
             {"examples_seen", position_.examples_seen},
             {"random_seed", random_.seed()},
             {"random_position", random_.position()},
             {"data_hash", data_.hash()}};
  if (std::isfinite(best_validation_)) state["best_validation"] = best_validation_;
  save_checkpoint(folder,
                  {{"format", kFormat},
                   {"model", settings_.model},
                   {"training", settings_},
                   {"tokenizer", data_.tokenizer().to_json()},
                   {"state", state}},
                  model_, *optimizer_);
}

void Trainer::load(const std::filesystem::path& folder) {
  read_checkpoint(folder, [&](const json& saved) {
    const json& state = saved.at("state");
    require(state.at("data_hash").get<std::uint64_t>() == data_.hash(), folder.string(),
            ": the run was trained on other data than ", data_.description());
    require(Tokenizer::from_json(saved.at("tokenizer")) == data_.tokenizer(), folder.string(),
            ": the run was trained on other data than ", data_.description(), ": its tokens are others");
    const auto steps_done = state.at("step").get<std::int64_t>();
    require(steps_done >= 0 && steps_done <= settings_.steps, folder.string(), ": step ", steps_done,
            " is outside of a run of ", settings_.steps);
    const auto optimizer_steps = state.at("optimizer_steps").get<std::int64_t>();
    const DataPosition position{state.at("examples_seen").get<std::int64_t>()};
    const Generator random(state.at("random_seed").get<std::uint64_t>(),
                           state.at("random_position").get<std::uint64_t>());
    const double best = state.value("best_validation", std::numeric_limits<double>::infinity());
    load_checkpoint(folder, model_, *optimizer_);
    optimizer_->set_steps(optimizer_steps);
    steps_done_ = steps_done;
    position_ = position;
    random_ = random;
    best_validation_ = best;
  });
}

SavedRun load_saved_run(const std::filesystem::path& folder) {
  return read_checkpoint(folder, [](const json& saved) {
    SavedRun run{saved.at("training").get<TrainSettings>(), Tokenizer::from_json(saved.at("tokenizer"))};
    run.settings.model = saved.at("model").get<DecoderConfig>();
    return run;
  });
}

}  // namespace needle
