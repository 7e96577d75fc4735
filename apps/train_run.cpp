#include "apps/train_run.h"

#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/run_folder.h"
#include "apps/terminal.h"
#include "apps/train_report.h"
#include "needle/anomaly.h"
#include "needle/io/checkpoint.h"
#include "needle/train/trainer.h"

namespace needle {

namespace {

/// The settings that the options mean, whole: those of the saved run when one is resumed.
TrainSettings settings_of(const TrainOptions& options, std::filesystem::path& checkpoint) {
  TrainSettings settings = options.settings;
  if (!options.resume.empty()) {
    checkpoint = find_checkpoint(options.resume);
    const bool strict = settings.model.strict;
    settings = load_saved_run(checkpoint).settings;
    settings.model.strict = strict;
  } else if (!options.betas.empty()) {
    settings.beta1 = options.betas.at(0);
    settings.beta2 = options.betas.at(1);
  }
  if (!options.lines.empty()) settings.data.source = DataSource::lines, settings.data.file = options.lines;
  if (!options.text.empty()) settings.data.source = DataSource::text, settings.data.file = options.text;
  return settings;
}

/// How long a step and a validation take, measured on a copy so that the run itself is not touched.
double estimated_seconds(Trainer& trainer) {
  Trainer copy(trainer.settings(), trainer.data(), trainer.device());
  copy.step();
  double step = 1e9;
  for (int i = 0; i < 3; ++i) step = std::min(step, copy.step().seconds);
  const auto start = std::chrono::steady_clock::now();
  copy.evaluate();
  const double validation = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const TrainSettings& s = trainer.settings();
  const double left = static_cast<double>(s.steps - trainer.steps_done());
  return left * step + left / static_cast<double>(s.evaluate_every) * validation;
}

/// The loop: steps, validations, checkpoints. False when the user stopped it.
bool train_to_end(Trainer& trainer, RunFolder& run, TrainReport& report) {
  const TrainSettings& settings = trainer.settings();
  const auto start = std::chrono::steady_clock::now();
  const std::int64_t first = trainer.steps_done();
  while (trainer.steps_done() < settings.steps) {
    HistoryRow row{trainer.step(), 0, {}};
    const std::int64_t step = trainer.steps_done();
    row.tokens_per_second =
        row.step.seconds > 0 ? static_cast<double>(row.step.tokens) / row.step.seconds : 0;
    const bool stop = stop_requested(), last = stop || step == settings.steps;
    if (last || step % settings.evaluate_every == 0) {
      row.validation = trainer.evaluate().loss;
      if (*row.validation < trainer.best_validation()) {
        trainer.set_best_validation(*row.validation);
        run.save_best(trainer);
      }
    }
    run.record(row);
    const double spent = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    report.step(row, spent / static_cast<double>(step - first) * static_cast<double>(settings.steps - step));
    if (last || step % settings.save_every == 0) {
      run.save(trainer);
      run.write_losses();
    }
    if (stop && step < settings.steps) return false;
  }
  return true;
}

}  // namespace

TrainSettings TrainOptions::default_settings() {
  TrainSettings settings;
  settings.model.context = 96;
  settings.model.width = 128;
  settings.model.layers = 4;
  settings.model.heads = 4;
  settings.steps = 1500;
  settings.batch = 32;
  return settings;
}

int run_training(TrainOptions options) {
  const Device device = device_of(options.device);
  std::filesystem::path checkpoint;
  const TrainSettings settings = settings_of(options, checkpoint);
  const std::unique_ptr<Dataset> data = make_dataset(settings);
  Trainer trainer(settings, *data, device);
  std::optional<RunFolder> run;
  if (checkpoint.empty()) {
    run = RunFolder::create(options.out, name_of_source(settings.data.source), options.overwrite);
  } else {
    trainer.load(checkpoint);
    const bool inside = checkpoint != std::filesystem::path(options.resume);
    run = RunFolder::reopen(inside ? std::filesystem::path(options.resume) : checkpoint.parent_path(),
                            trainer.steps_done());
  }
  TrainReport report(options.json);
  report.start(trainer, *run, estimated_seconds(trainer));
  AnomalyDetector detector;
  const ObserverScope watch(options.anomaly ? &detector : nullptr);
  const bool finished = train_to_end(trainer, *run, report);
  run->draw_curve(data->floor());
  if (finished)
    report.finish(trainer, *run);
  else
    report.stopped(trainer, *run);
  return 0;
}

}  // namespace needle
