#include "needle/inspect/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "needle/counters.h"

namespace needle {

using nlohmann::json;

namespace {

/// The receptive field of a convolution without dilation.
constexpr std::int64_t kReach = 13;

/// A family before its width is chosen.
struct Family {
  const char* name;
  ModelKind kind;
  std::int64_t layers;  // 0: as many as reach kReach without dilation
  bool dilated;
};

constexpr Family kFamilies[] = {{"rnn", ModelKind::rnn, 2, false},
                                {"gru", ModelKind::gru, 2, false},
                                {"lstm", ModelKind::lstm, 2, false},
                                {"convolution", ModelKind::convolution, 0, false},
                                {"dilated", ModelKind::convolution, 0, true},
                                {"attention", ModelKind::decoder, 3, false}};

const Family& family_of(const std::string& name) {
  const auto found = std::ranges::find(kFamilies, name, [](const Family& f) { return std::string(f.name); });
  std::string all;
  for (const Family& family : kFamilies) all += (all.empty() ? "" : ", ") + std::string(family.name);
  require(found != std::end(kFamilies), "compare: there is no model '", name, "'; there are ", all);
  return *found;
}

double distance_from(const ModelConfig& model, std::int64_t parameters) {
  return std::abs(static_cast<double>(model.parameter_count() - parameters));
}

/// The first of the growing sizes from `first` on at which `with` is nearest to so many parameters.
template <class With>
ModelConfig nearest(std::int64_t first, std::int64_t step, std::int64_t parameters, const With& with) {
  ModelConfig best = with(first);
  for (std::int64_t size = first + step;; size += step) {
    const ModelConfig next = with(size);
    if (distance_from(next, parameters) >= distance_from(best, parameters)) return best;
    best = next;
  }
}

}  // namespace

std::vector<std::string> known_families() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.push_back(family.name);
  return names;
}

ModelConfig model_of_family(const std::string& name, const CompareSettings& settings, const Dataset& data) {
  const Family& family = family_of(name);
  ModelConfig model = settings.training.model;
  model.kind = family.kind;
  model.vocabulary = data.tokenizer().vocabulary_size();
  if (data.longest_row() > 0) model.context = data.longest_row();
  const std::int64_t span = std::max<std::int64_t>(model.kernel - 1, 1);
  model.layers = settings.layers > 0 ? settings.layers
                 : family.layers > 0 ? family.layers
                                     : std::max<std::int64_t>((kReach - 1) / span, 1);
  model.dilations = {1};
  constexpr std::int64_t kFarthest = std::int64_t{1} << 20;
  for (std::int64_t layer = 1; family.dilated && layer < model.layers; ++layer)
    model.dilations.push_back(std::min(kFarthest, model.dilations.back() * 2));
  const auto with_width = [&](std::int64_t width) {
    ModelConfig sized = model;
    sized.width = width;
    sized.ffn = 0;
    return sized.resolved();
  };
  // Rotations want pairs in each head.
  const std::int64_t step = model.has_attention() ? 2 * model.heads : 2;
  model = nearest(step, step, settings.parameters, with_width);
  if (model.has_attention()) {
    const auto with_ffn = [&](std::int64_t ffn) {
      ModelConfig sized = model;
      sized.ffn = ffn;
      return sized;
    };
    model = nearest(1, 1, settings.parameters, with_ffn);
  }
  require(distance_from(model, settings.parameters) <= 0.05 * static_cast<double>(settings.parameters),
          "compare: no ", name, " of ", model.layers, " layers has ", settings.parameters,
          " parameters within 5 %; the nearest has ", model.parameter_count());
  return model;
}

void CompareSettings::validate() const {
  training.validate();
  require(!models.empty(), "compare: wants at least one model");
  for (const std::string& model : models) family_of(model);
  require(!learning_rates.empty(), "compare: wants at least one learning rate");
  for (const double rate : learning_rates)
    require(rate > 0 && std::isfinite(rate), "compare: learning rates must be positive, got ", rate);
  require(parameters > 0, "compare: parameters must be positive, got ", parameters);
  require(seeds > 0, "compare: seeds must be positive, got ", seeds);
  require(points > 0, "compare: points must be positive, got ", points);
  require(layers >= 0, "compare: layers must not be negative, got ", layers);
  require(operations >= 0 && std::isfinite(operations), "compare: operations must not be negative, got ",
          operations);
  require(seconds > 0 && std::isfinite(seconds), "compare: seconds must be positive, got ", seconds);
  require(search_share > 0 && search_share <= 1, "compare: search-share must be in (0, 1], got ",
          search_share);
}

json to_json_value(const CompareSettings& settings) {
  return {{"training", settings.training},
          {"model", settings.training.model},
          {"models", settings.models},
          {"parameters", settings.parameters},
          {"budget", name_of_choice(settings.budget)},
          {"operations", settings.operations},
          {"seconds", settings.seconds},
          {"learning_rates", settings.learning_rates},
          {"search_share", settings.search_share},
          {"seeds", settings.seeds},
          {"points", settings.points},
          {"layers", settings.layers}};
}

std::string ComparedRun::name() const {
  std::ostringstream text;
  text << family << (search ? "-search" : "") << "-rate-" << learning_rate << "-seed-" << seed;
  return text.str();
}

namespace {

TrainSettings settings_of(const ComparedRun& run, const ModelConfig& model, const CompareSettings& settings) {
  TrainSettings training = settings.training;
  training.model = model;
  training.learning_rate = run.learning_rate;
  training.final_learning_rate = run.learning_rate / 100;
  training.steps = run.steps;
  training.warmup = std::min(training.warmup, run.steps / 10);
  training.seed = run.seed;
  return training;
}

}  // namespace

StepCost measure_step(const ModelConfig& model, const CompareSettings& settings, Dataset& data,
                      Device device) {
  const ComparedRun run{"", settings.learning_rates.front(), 1, settings.training.steps, false};
  Trainer trainer(settings_of(run, model, settings), data, device);
  OperationCounter counter;
  {  // which the memory pool grows in, too
    const ObserverScope watch(&counter);
    trainer.rehearse_step();
  }
  StepCost cost{0, counter.products(Phase::forward) + counter.products(Phase::backward)};
  constexpr int kMeasured = 5;
  for (int i = 0; i < kMeasured; ++i) cost.seconds += trainer.step().seconds / kMeasured;
  return cost;
}

std::optional<ComparedResult> run_compared(const ComparedRun& run, const ModelConfig& model,
                                           const CompareSettings& settings, Dataset& data,
                                           double operations_per_step, Device device,
                                           const std::function<bool(std::int64_t)>& on_step,
                                           const std::function<void(SequenceModel&)>& at_end) {
  device->trim_memory();  // so that the peak is this run's
  const std::size_t before = device->memory_stats().live;
  Trainer trainer(settings_of(run, model, settings), data, device);
  ComparedResult result{run, {}, {}, 0, 0, 0, 0, 0};
  const std::int64_t pause = run.search ? run.steps : std::max<std::int64_t>(1, run.steps / settings.points);
  double seconds = 0, losses = 0;
  std::int64_t tokens = 0, counted = 0;
  Evaluation last;
  while (trainer.steps_done() < run.steps) {
    const StepResult step = trainer.step();
    seconds += step.seconds, tokens += step.tokens, losses += step.loss, ++counted;
    if (!on_step(step.step)) return std::nullopt;
    if (step.step % pause != 0 && step.step != run.steps) continue;
    // What training needs; evaluations look at other batches.
    result.peak_bytes =
        std::max(result.peak_bytes, static_cast<double>(device->memory_stats().peak - before));
    last = trainer.evaluate();
    result.points.push_back({step.step, seconds, operations_per_step * static_cast<double>(step.step),
                             losses / static_cast<double>(std::exchange(counted, 0)), last.loss,
                             last.tokens.share()});
    losses = 0;
  }
  result.loss = last.loss;
  result.accuracy = last.tokens.share();
  result.rows_accuracy = last.rows.share();
  result.by_distance.assign(last.by_distance.begin(), last.by_distance.end());
  result.tokens_per_second = static_cast<double>(tokens) / seconds;
  if (at_end) at_end(trainer.model());
  return result;
}

void to_json(json& value, const ComparedResult& result) {
  value = {{"family", result.run.family},
           {"learning_rate", result.run.learning_rate},
           {"seed", result.run.seed},
           {"steps", result.run.steps},
           {"search", result.run.search},
           {"loss", result.loss},
           {"accuracy", result.accuracy},
           {"rows_accuracy", result.rows_accuracy},
           {"tokens_per_second", result.tokens_per_second},
           {"peak_bytes", result.peak_bytes},
           {"points", json::array()},
           {"by_distance", json::array()}};
  for (const ComparedPoint& p : result.points)
    value["points"].push_back(
        {p.step, p.seconds, p.operations, p.training_loss, p.validation_loss, p.accuracy});
  for (const auto& [distance, hits] : result.by_distance)
    value["by_distance"].push_back({distance, hits.hit, hits.targets});
}

namespace {

/// JSON has no number that is not finite; it stands as null.
double number_of(const json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

}  // namespace

void from_json(const json& value, ComparedResult& result) {
  result.run = {value.at("family"), value.at("learning_rate"), value.at("seed"), value.at("steps"),
                value.at("search")};
  result.loss = number_of(value.at("loss"));
  result.accuracy = value.at("accuracy");
  result.rows_accuracy = value.at("rows_accuracy");
  result.tokens_per_second = value.at("tokens_per_second");
  result.peak_bytes = value.at("peak_bytes");
  for (const json& p : value.at("points"))
    result.points.push_back({p.at(0), p.at(1), p.at(2), number_of(p.at(3)), number_of(p.at(4)), p.at(5)});
  for (const json& p : value.at("by_distance")) result.by_distance.push_back({p.at(0), {p.at(1), p.at(2)}});
}

Spread spread_of(const std::vector<double>& numbers) {
  Spread spread;
  const double count = static_cast<double>(numbers.size());
  for (const double x : numbers) spread.mean += x / count;
  if (numbers.size() < 2) return spread;
  for (const double x : numbers) spread.deviation += (x - spread.mean) * (x - spread.mean) / (count - 1);
  spread.deviation = std::sqrt(spread.deviation);
  return spread;
}

}  // namespace needle
