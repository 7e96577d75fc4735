#include "needle/train/training.h"

#include "backends/clock.h"

namespace needle {

namespace {

/// The validation loss; the model is saved as the best one if it is.
double evaluate_and_keep_best(Trainer& trainer, RunFolder& run) {
  const double best_before = trainer.best_validation(), loss = trainer.evaluate().loss;
  if (loss < best_before) run.save_best(trainer);
  return loss;
}

}  // namespace

bool train(Trainer& trainer, RunFolder& run, const TrainingEvents& events) {
  const TrainSettings& settings = trainer.settings();
  // Where a device runs ahead, results are asked for only so often that people and files stay up to date.
  constexpr double kPause = 0.2;
  double told = now();
  while (trainer.steps_done() < settings.steps) {
    {
      const ObserverScope watch(events.observer ? events.observer(trainer.steps_done() + 1)
                                                : current_observer());
      trainer.begin_step();
    }
    const std::int64_t step = trainer.steps_done();
    const bool last = step == settings.steps, evaluates = last || step % settings.evaluate_every == 0,
               saves = last || step % settings.save_every == 0;
    if (trainer.device()->runs_ahead() && !evaluates && !saves && trainer.may_begin() &&
        now() - told < kPause)
      continue;
    const std::vector<StepResult> results = trainer.finish_steps();
    told = now();
    std::optional<double> validation;
    if (evaluates) validation = evaluate_and_keep_best(trainer, run);
    for (const StepResult& result : results) {
      const auto its_validation = result.step == step ? validation : std::nullopt;
      run.append({result.step, result.loss, its_validation, result.learning_rate, result.gradient_norm,
                  result.tokens_per_second()});
      if (events.on_step) events.on_step(result, its_validation);
    }
    const bool stopped = !last && events.stop && events.stop();
    if (saves || stopped) run.save(trainer);
    if (stopped) return false;
  }
  return true;
}

}  // namespace needle
