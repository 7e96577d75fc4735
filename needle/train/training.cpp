#include "needle/train/training.h"

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
  while (trainer.steps_done() < settings.steps) {
    const StepResult result = trainer.step();
    const bool last = result.step == settings.steps;
    std::optional<double> validation;
    if (last || result.step % settings.evaluate_every == 0) validation = evaluate_and_keep_best(trainer, run);
    run.append({result.step, result.loss, validation, result.learning_rate, result.gradient_norm,
                result.tokens_per_second()});
    if (events.on_step) events.on_step(result, validation);
    const bool stopped = !last && events.stop && events.stop();
    if (last || stopped || result.step % settings.save_every == 0) run.save(trainer);
    if (stopped) return false;
  }
  return true;
}

}  // namespace needle
