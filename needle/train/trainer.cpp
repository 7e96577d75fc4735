#include "needle/train/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "backends/clock.h"
#include "needle/io/checkpoint.h"
#include "needle/models/model.h"
#include "needle/observer.h"
#include "needle/ops/reduce.h"
#include "needle/ops/shape.h"
#include "needle/precision.h"

namespace needle {

namespace {

using nlohmann::json;

constexpr const char* kFormat = "needle checkpoint 1";

/// Of training in float16, whose smallest numbers would otherwise swallow gradients.
constexpr double kFirstLossScale = 65536;

TrainSettings for_data(TrainSettings settings, const Dataset& data) {
  settings.validate();
  ModelConfig& model = settings.model;
  require(data.longest_row() <= model.context, "train: a context of ", model.context,
          " is too small for rows of ", data.longest_row(), " positions");
  require(data.feature_width() == 0 || model.kind == ModelKind::patches,
          "train: positions of this data are no tokens; it wants the model patches");
  require(!data.has_source() || model.kind == ModelKind::encoder_decoder,
          "train: this data is to be translated; it wants the model encoder-decoder");
  // A model that was there before its data may know more ids than the tokens have.
  if (settings.data.from.empty()) model.vocabulary = data.vocabulary();
  require(data.vocabulary() <= model.vocabulary, "train: the data has ", data.vocabulary(),
          " ids, the model ", model.vocabulary);
  model.features = data.feature_width();
  model = model.resolved();
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
  SequenceInput input{NDArray::from(batch.ids, shape, device),
                      padded ? NDArray::from(batch.real, shape, device) : NDArray(),
                      NDArray::from(batch.positions, shape, device)};
  if (!batch.source_ids.empty()) {
    const Shape source_shape{batch.rows, batch.source_time};
    input.source_ids = NDArray::from(batch.source_ids, source_shape, device);
    input.source_real = NDArray::from(batch.source_real, source_shape, device);
  }
  if (!batch.features.empty())
    input.features = NDArray::from(batch.features, {batch.rows, batch.time, batch.feature_width}, device);
  return input;
}

NDArray labels_of(const Batch& batch, Device device) {
  return NDArray::from(batch.labels, {batch.rows, batch.time}, device);
}

namespace {

/// Counts the predictions of a batch, and adds up their losses.
void count(const Batch& batch, const std::vector<double>& losses, const std::vector<std::int64_t>& predicted,
           Evaluation& result) {
  for (std::int64_t row = 0; row < batch.rows; ++row) {
    bool all = true, any = false;
    for (std::int64_t t = 0; t < batch.time; ++t) {
      const auto place = static_cast<std::size_t>(row * batch.time + t);
      if (batch.labels[place] == CrossEntropySettings{}.ignore_index) continue;
      const bool hit = predicted[place] == batch.labels[place];
      any = true, all = all && hit;
      result.loss += losses[place];
      result.tokens.hit += hit, ++result.tokens.targets;
      if (batch.distances.empty() || batch.distances[place] < 0) continue;
      Hits& there = result.by_distance[batch.distances[place]];
      there.hit += hit, ++there.targets;
    }
    result.rows.hit += any && all, result.rows.targets += any;
  }
}

}  // namespace

Evaluation evaluate(SequenceModel& model, const std::vector<Batch>& batches, Device device) {
  const NoGrad off;
  Evaluation result;
  for (const Batch& batch : batches) {
    const SequenceInput input = input_of(batch, device);
    const Tensor states = model.states(model.embed(input, {}), input, {});
    const std::int64_t places = batch.rows * batch.time;
    const Tensor rows = reshape(states, {places, states.size(-1)});
    const NDArray labels = labels_of(batch, device).reshape({places});
    const std::int64_t chunk = rows_of_chunk(model.vocabulary_size(), DType::f32, device);
    std::vector<double> losses;
    std::vector<std::int64_t> predicted;
    for (std::int64_t start = 0; start < places; start += chunk) {
      const std::int64_t end = std::min(places, start + chunk);
      const Tensor logits = model.head(slice(rows, 0, start, end));
      std::ranges::copy(cross_entropy_rows(logits, labels.slice(0, start, end)).array().to_vector<double>(),
                        std::back_inserter(losses));
      std::ranges::copy(argmax(logits.array()).to_vector<std::int64_t>(), std::back_inserter(predicted));
    }
    count(batch, losses, predicted, result);
  }
  result.targets = result.tokens.targets;
  if (result.targets > 0) result.loss /= static_cast<double>(result.targets);
  return result;
}

Trainer::Trainer(const TrainSettings& settings, Dataset& data, Device device)
    : settings_(for_data(settings, data)),
      data_(data),
      device_(device),
      random_(static_cast<std::uint64_t>(settings.seed)),
      model_(make_model(settings_.model, random_, device)),
      parameters_(model_->parameters()),
      optimizer_(make_optimizer(settings_, parameters_)) {
  if (settings_.precision == DType::f16) optimizer_->set_loss_scale(kFirstLossScale);
  // A device that has no such products says so now, before anything is written.
  const NDArray one = NDArray::ones({1, 1}, settings_.precision, device);
  NDArray product = one.copy();
  matmul_into(one, one, product, false);
}

namespace {

/// All arrays of an input, some of which may be none.
template <class Input>
auto arrays_of(Input& input) {
  return std::array{&input.ids,        &input.real,        &input.positions,
                    &input.source_ids, &input.source_real, &input.features};
}

}  // namespace

bool Trainer::StepInput::fits(const StepInput& other) const {
  if (inputs.size() != other.inputs.size() || valid_targets != other.valid_targets) return false;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto ours = arrays_of(inputs[i]), theirs = arrays_of(other.inputs[i]);
    for (std::size_t array = 0; array < ours.size(); ++array) {
      const NDArray &a = *ours[array], &b = *theirs[array];
      if (a.defined() != b.defined() || (a.defined() && a.shape() != b.shape())) return false;
    }
  }
  return true;
}

void Trainer::StepInput::assign(const StepInput& other) {
  tokens = other.tokens;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto to = arrays_of(inputs[i]);
    const auto from = arrays_of(other.inputs[i]);
    for (std::size_t array = 0; array < to.size(); ++array) {
      if (to[array]->defined()) to[array]->assign(*from[array]);
    }
    labels[i].assign(other.labels[i]);
  }
}

Trainer::StepInput Trainer::next_input(DataPosition& position) {
  StepInput result;
  for (std::int64_t part = 0; part < settings_.accumulate; ++part) {
    const Batch batch = data_.next_training_batch(position, settings_.batch);
    result.inputs.push_back(input_of(batch, device_));
    result.labels.push_back(labels_of(batch, device_));
    result.valid_targets += batch.valid_targets;
    result.tokens += std::ranges::count(batch.real, 1);
  }
  return result;
}

NDArray Trainer::add_gradients(const StepInput& input, Generator& random) {
  const PrecisionScope precision(settings_.precision, settings_.half_residual);
  LossOptions options;
  options.settings.label_smoothing = settings_.label_smoothing;
  options.divisor = static_cast<double>(input.valid_targets);
  const Pass pass{true, &random};
  NDArray total;
  for (std::size_t i = 0; i < input.inputs.size(); ++i) {
    const Tensor loss = model_->loss(input.inputs[i], input.labels[i], options, pass);
    total = total.defined() ? binary(Add{}, total, loss.array()) : loss.array();
    if (settings_.precision == DType::f16)
      loss.backward(optimizer_->loss_scale());
    else
      loss.backward();
  }
  return total;
}

void Trainer::do_step(const StepInput& input) {
  loss_.assign(add_gradients(input, random_));
  optimizer_->clip({settings_.clip, settings_.precision == DType::f16});
  optimizer_->step();
  optimizer_->clear_gradients();
}

void Trainer::record_steps() {
  require(!current_observer(), "train: a recorded step cannot be watched, as for anomalies");
  require(!settings_.model.strict, "train: --strict looks at each batch, which a recorded step cannot");
  recorded_.reset();
  recording_ = device_->new_recording();
  require(recording_ != nullptr, "train: steps can be recorded on cuda devices alone, not on ",
          device_.name());
}

void Trainer::do_recorded_step(const StepInput& input) {
  // The first step fills what is made once; the second, the recording's memory.
  if (!recorded_) {
    do_step(input);
    recorded_ = input;
    return;
  }
  if (!recorded_->fits(input)) return do_step(input);
  recorded_->assign(input);
  const std::uint64_t from = random_.position();
  if (recording_->run([&] { do_step(*recorded_); }, from - recorded_from_)) {
    recorded_from_ = from;
    recorded_draws_ = random_.position() - from;
    // The recording goes on writing to the copies, which must stay even where others take their part.
    recorded_copies_.clear();
    for (const Parameter& parameter : parameters_)
      recorded_copies_.push_back(parameter.tensor.array().kept_rounded());
    return;
  }
  if (recorded_draws_ > 0) random_.reserve(recorded_draws_);
  // What the device wrote, the host must know to be new; copies in 16 bits were written too.
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    NDArray array = parameters_[i].tensor.array(), copy = array.kept_rounded();
    if (copy.defined() && copy.is_same(recorded_copies_[i]))
      array.mutable_views();
    else
      array.mutable_view();
  }
}

void Trainer::begin_step() {
  require(may_begin(), "trainer: ", kMostBegun, " steps were begun, and none asked for its result");
  if (begun_.empty()) begun_since_ = now();
  if (!history_.defined()) {
    history_ = NDArray::zeros({kMostBegun, 1 + kStepNumbers}, DType::f64, device_);
    loss_ = NDArray::scalar(0, DType::f32, device_);
  }
  StepResult result;
  result.learning_rate = settings_.schedule().rate(steps_done_);
  const StepInput input = next_input(position_);
  result.tokens = input.tokens;
  if (input.valid_targets == 0) {
    result.skipped = "no target of the batch counts";
  } else {
    optimizer_->set_learning_rate(result.learning_rate);
    if (recording_)
      do_recorded_step(input);
    else
      do_step(input);
    NDArray row = history_[static_cast<std::int64_t>(begun_.size())];
    NDArray its_loss = row[0], its_numbers = row.slice(0, 1, 1 + kStepNumbers);
    its_loss.assign(loss_);
    its_numbers.assign(optimizer_->step_numbers());
  }
  result.step = ++steps_done_;
  begun_.push_back(std::move(result));
}

std::vector<StepResult> Trainer::finish_steps() {
  const std::int64_t count = static_cast<std::int64_t>(begun_.size());
  if (count == 0) return {};
  const std::vector<double> numbers = history_.slice(0, 0, count).to_vector<double>();
  for (std::int64_t i = 0; i < count; ++i) {
    StepResult& result = begun_[static_cast<std::size_t>(i)];
    result.seconds = (now() - begun_since_) / static_cast<double>(count);
    if (!result.skipped.empty()) continue;
    const double* const row = numbers.data() + i * (1 + kStepNumbers);
    StepState state;
    std::memcpy(static_cast<void*>(&state), row + 1, sizeof(state));
    result.loss = row[0];
    result.gradient_norm = state.gradient_norm;
    if (state.first_bad >= 0)
      result.skipped = "the gradient of " + optimizer_->name_of_gradient(state.first_bad) + " is not finite";
  }
  return std::exchange(begun_, {});
}

StepResult Trainer::rehearse_step() {
  const double start = now();
  DataPosition position = position_;
  Generator random = random_;
  const StepInput input = next_input(position);
  StepResult result;
  result.tokens = input.tokens;
  if (input.valid_targets > 0) {
    result.loss = add_gradients(input, random).item();
    result.gradient_norm =
        gradient_norm(parameters_, settings_.clip).norm / optimizer_->step_state().loss_scale;
  }
  optimizer_->clear_gradients();
  result.seconds = now() - start;
  return result;
}

Evaluation Trainer::evaluate() {
  const PrecisionScope precision(settings_.precision, settings_.half_residual);
  const Evaluation result = needle::evaluate(*model_, data_.validation_batches(settings_.batch), device_);
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
  if (settings_.precision == DType::f16) {
    const StepState numbers = optimizer_->step_state();
    state["loss_scale"] = numbers.loss_scale;
    state["good_steps"] = numbers.good_steps;
  }
  save_checkpoint(folder,
                  {{"format", kFormat},
                   {"model", settings_.model},
                   {"training", settings_},
                   {"tokenizer", data_.tokenizer().to_json()},
                   {"state", state}},
                  *model_, *optimizer_);
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
    load_checkpoint(folder, *model_, *optimizer_);
    if (recording_) record_steps();  // anew, since the old one knows other arrays
    optimizer_->set_steps(optimizer_steps);
    if (settings_.precision == DType::f16)
      optimizer_->set_loss_scale(state.value("loss_scale", kFirstLossScale), state.value("good_steps", 0.0));
    steps_done_ = steps_done;
    position_ = position;
    random_ = random;
    best_validation_ = best;
  });
}

SavedRun load_saved_run(const std::filesystem::path& folder) {
  return read_checkpoint(folder, [](const json& saved) {
    SavedRun run{saved.at("training").get<TrainSettings>(), Tokenizer::from_json(saved.at("tokenizer"))};
    run.settings.model = saved.at("model").get<ModelConfig>();
    return run;
  });
}

}  // namespace needle
