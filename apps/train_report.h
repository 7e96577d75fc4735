// What `needle train` tells before the run, while it runs, and at its end: measured once, shown as text or as
// JSON.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/writing.h"
#include "needle/train/run_folder.h"
#include "needle/train/trainer.h"

namespace needle {

/// What is known before the first step.
struct TrainStart {
  std::filesystem::path run;
  std::string data;
  TrainSettings settings;
  std::int64_t parameters = 0;  ///< numbers, a tied table counted once
  std::vector<std::string> decaying, not_decaying;
  std::int64_t decaying_numbers = 0;
  double loss = 0;          ///< of the validation data's first batch
  double uniform_loss = 0;  ///< ln(vocabulary): that of a guess without knowledge
  std::optional<double> floor, entropy;
  std::string device;
  int threads = 0;
  std::int64_t steps_done = 0;
  double estimated_seconds = 0;
};
TrainStart measure_start(Trainer& trainer, const RunFolder& run, double estimated_seconds);

/// How the model's own sentences fare by the rules of the built-in corpus.
struct CorpusAccuracy {
  std::int64_t sentences = 0;
  std::int64_t agreeing = 0;     ///< sentences in which every verb agrees with its subject
  std::int64_t closing = 0;      ///< sentences in which every bracket closes in order
  std::int64_t in_language = 0;  ///< sentences that the grammar makes
};

/// What is known after the last step.
struct TrainEnd {
  std::int64_t step = 0;
  Evaluation validation;
  double best_validation_loss = 0;
  std::optional<double> floor, chance;
  std::vector<Writing> samples;
  std::string no_samples;  ///< why there are none
  std::optional<CorpusAccuracy> accuracy;
  std::filesystem::path checkpoint, best, losses, curve;
};
TrainEnd measure_end(Trainer& trainer, const RunFolder& run, const std::filesystem::path& curve);

/// Shows a run.
class TrainReport {
 public:
  virtual ~TrainReport() = default;
  virtual void start(const TrainStart& start) = 0;
  virtual void step(const StepResult& step, std::optional<double> validation_loss, double seconds_left) = 0;
  virtual void finish(const TrainEnd& end) = 0;
  virtual void stopped(std::int64_t step, const std::filesystem::path& run) = 0;
};

/// For people: results on stdout, a live line and warnings on stderr.
std::unique_ptr<TrainReport> make_text_report();
/// For programs: one JSON object a line on stdout.
std::unique_ptr<TrainReport> make_json_report();

}  // namespace needle
