#include "apps/train_run.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "apps/loss_curve.h"
#include "apps/saved_model.h"
#include "apps/train_report.h"
#include "backends/clock.h"
#include "needle/anomaly.h"
#include "needle/io/checkpoint.h"
#include "needle/train/training.h"
#include "needle/train/watch.h"

namespace needle {

namespace {

namespace fs = std::filesystem;

/// The model of the checkpoint that training begins with; other settings of it that the options give are an
/// Error. The context may be shorter, and what is dropped out concerns training alone.
void begin_with(const SavedDescription& saved, const TrainOptions& options, TrainSettings& settings) {
  const ModelConfig given = settings.model;
  const nlohmann::json ours = given, theirs = saved.settings.model;
  for (const std::string& name : options.model_given) {
    if (name == "context" || name == "dropout") continue;
    std::string key = name == "model" ? "kind" : name;
    std::ranges::replace(key, '-', '_');
    require(ours.at(key) == theirs.at(key), "train: --", name, ' ', ours.at(key).dump(), " does not fit ",
            saved.folder.string(), ", whose model has ", theirs.at(key).dump(), "; leave it out");
  }
  settings.model = saved.settings.model;
  settings.model.strict = given.strict;
  if (std::ranges::count(options.model_given, "dropout") > 0) settings.model.dropout = given.dropout;
  if (options.context_given) {
    require(given.context > 0 && given.context <= settings.model.context, "train: --context ", given.context,
            " does not fit ", saved.folder.string(), ", whose model reads 1 to ", settings.model.context,
            " positions");
    settings.data.context = given.context;
  }
  settings.data.tokens = saved.tokenizer.kind();
  settings.data.from = saved.folder.string();
}

/// What a run begins with: those settings of the options that are not the saved run's, and tokens and weights
/// that were there before.
struct Beginning {
  TrainSettings settings;
  std::optional<Tokenizer> tokenizer;
  std::optional<SavedDescription> weights;
};

Beginning beginning_of(const TrainOptions& options, const fs::path& checkpoint) {
  Beginning beginning{options.settings, {}, {}};
  TrainSettings& settings = beginning.settings;
  if (!checkpoint.empty()) {
    const SavedRun run = load_saved_run(checkpoint);
    settings = run.settings;
    settings.model.strict = options.settings.model.strict;
    if (!settings.data.from.empty()) beginning.tokenizer = run.tokenizer;
  } else if (!options.from.empty()) {
    beginning.weights = describe_saved(options.from);
    beginning.tokenizer = beginning.weights->tokenizer;
    begin_with(*beginning.weights, options, settings);
  }
  const std::string& file = settings.data.file;
  require(checkpoint.empty() || file.empty() || fs::exists(file) || !options.lines.empty() ||
              !options.text.empty(),
          "train: the run's data file ", file, " is not there; give its new place with ",
          settings.data.source == DataSource::lines ? "--lines" : "--text");
  if (!options.betas.empty()) settings.beta1 = options.betas.at(0), settings.beta2 = options.betas.at(1);
  if (!options.lines.empty()) settings.data.source = DataSource::lines, settings.data.file = options.lines;
  if (!options.text.empty()) settings.data.source = DataSource::text, settings.data.file = options.text;
  return beginning;
}

/// The folder of the run, new or with the checkpoint loaded into the trainer.
RunFolder open_run(const TrainOptions& options, const fs::path& checkpoint, Trainer& trainer) {
  if (checkpoint.empty()) {
    const std::string name = trainer.settings().data.name();
    return RunFolder::create(options.out.empty() ? RunFolder::free_path(name) : fs::path(options.out),
                             options.overwrite);
  }
  const fs::path run = fs::equivalent(checkpoint, options.resume) ? fs::canonical(checkpoint).parent_path()
                                                                  : fs::path(options.resume);
  require(RunFolder::is_run(run) || !options.out.empty(), checkpoint.string(),
          " is not in the folder of a run; give --out for a run of its own");
  trainer.load(checkpoint);
  if (!options.out.empty())
    return RunFolder::branch(run, options.out, trainer.steps_done(), options.overwrite);
  return RunFolder::reopen(run, trainer.steps_done());
}

/// How long the run will take, from real steps that leave no trace and from one batch of the validation.
double estimate_seconds(Trainer& trainer, const std::function<bool()>& stop) {
  const std::int64_t steps = trainer.settings().steps - trainer.steps_done();
  if (steps <= 0) return 0;
  // The first one is slow, since it fills the memory pool; where it is very slow, it has to do.
  double step = trainer.rehearse_step().seconds;
  constexpr double kPatience = 2;
  if (step < kPatience) {
    constexpr int kMeasured = 3;
    step = 0;
    for (int i = 0; i < kMeasured; ++i) step += trainer.rehearse_step().seconds / kMeasured;
  }
  if (stop()) return 0;
  const std::vector<Batch> batches = trainer.data().validation_batches(trainer.settings().batch);
  const double start = now();
  evaluate(trainer.model(), {batches.front()}, trainer.device());
  const double evaluation = (now() - start) * static_cast<double>(batches.size());
  return static_cast<double>(steps) *
         (step + evaluation / static_cast<double>(trainer.settings().evaluate_every));
}

/// train(); where the device fails, the message says from where to go on.
bool train_or_say_what_is_kept(Trainer& trainer, RunFolder& run, const TrainingEvents& events) {
  try {
    return train(trainer, run, events);
  } catch (const DeviceError& error) {
    const std::vector<fs::path> whole = checkpoints_of(run.path());
    throw DeviceError(
        std::string(error.what()) + "; " +
        (whole.empty() ? "no checkpoint had been written" : "whole is " + whole.back().string()));
  }
}

}  // namespace

void run_training(const TrainOptions& options, const std::function<bool()>& stop) {
  require(options.watch >= 0, "train: --watch must be at least 0, got ", options.watch);
  require(options.watch == 0 || !(options.graph || options.anomaly),
          "train: --watch looks at each of its steps, which goes with neither --graph nor --anomaly");
  const Device device = use(options.compute);
  const fs::path checkpoint = options.resume.empty() ? fs::path() : find_checkpoint(options.resume);
  const Beginning beginning = beginning_of(options, checkpoint);
  TrainSettings settings = beginning.settings;
  const std::unique_ptr<Dataset> data = make_dataset(settings, beginning.tokenizer);
  if (checkpoint.empty() && !options.context_given && data->longest_row() > 0)
    settings.model.context = data->longest_row();
  Trainer trainer(settings, *data, device);
  if (beginning.weights) load_weights(*beginning.weights, trainer.model());
  AnomalyDetector detector;
  const ObserverScope watch(options.anomaly ? &detector : nullptr);
  if (options.graph) trainer.record_steps();
  // From here on folders are made or emptied: whatever is impossible was said before.
  RunFolder run = open_run(options, checkpoint, trainer);

  const std::unique_ptr<TrainReport> report = options.json ? make_json_report() : make_text_report();
  report->start(measure_start(trainer, run, estimate_seconds(trainer, stop)));
  const double start = now();
  const std::int64_t first = trainer.steps_done();
  TrainingEvents events;
  events.stop = stop;
  std::optional<TrainingWatch> inside;
  if (options.watch > 0) {
    inside.emplace(trainer.model().parameters(), run.watch_file(), options.watch, trainer.steps_done());
    events.observer = [&](std::int64_t step) { return inside->of_step(step, current_observer()); };
  }
  events.on_step = [&](const StepResult& step, std::optional<double> validation_loss) {
    const double a_step = (now() - start) / static_cast<double>(step.step - first);
    report->step(step, validation_loss, a_step * static_cast<double>(settings.steps - step.step));
  };
  const bool finished = train_or_say_what_is_kept(trainer, run, events);
  const fs::path curve = draw_loss_curve(run, data->floor());
  if (finished)
    report->finish(measure_end(trainer, run, curve));
  else
    report->stopped(trainer.steps_done(), run.path());
}

}  // namespace needle
