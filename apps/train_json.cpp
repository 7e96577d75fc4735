// The report of a run for programs: one JSON object a line.
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/terminal.h"
#include "apps/train_report.h"

namespace needle {

namespace {

using nlohmann::json;

class JsonReport final : public TrainReport {
 public:
  void start(const TrainStart& start) override {
    json object{{"event", "start"},           {"run", start.run.string()},
                {"data", start.data},         {"model", start.settings.model},
                {"training", start.settings}, {"parameters", start.parameters},
                {"decaying", start.decaying}, {"not_decaying", start.not_decaying},
                {"loss", start.loss},         {"uniform_loss", start.uniform_loss},
                {"device", start.device},     {"threads", start.threads},
                {"step", start.steps_done},   {"estimated_seconds", start.estimated_seconds}};
    if (start.floor) object["floor"] = *start.floor;
    if (start.entropy) object["entropy"] = *start.entropy;
    print(object);
  }

  void step(const StepResult& step, std::optional<double> validation_loss, double seconds_left) override {
    json object{{"event", "step"},
                {"step", step.step},
                {"loss", step.loss},
                {"learning_rate", step.learning_rate},
                {"gradient_norm", step.gradient_norm},
                {"tokens_per_second", step.tokens_per_second()},
                {"seconds_left", seconds_left}};
    if (validation_loss) object["validation_loss"] = *validation_loss;
    if (!step.skipped.empty()) object["skipped"] = step.skipped;
    print(object);
  }

  void finish(const TrainEnd& end) override {
    json samples = json::array();
    for (const Writing& sample : end.samples)
      samples.push_back({{"text", sample.text}, {"ended", sample.ended}});
    json object{{"event", "end"},
                {"step", end.step},
                {"validation_loss", end.validation.loss},
                {"validation_accuracy", end.validation.tokens.share()},
                {"validation_rows_accuracy", end.validation.rows.share()},
                {"best_validation_loss", end.best_validation_loss},
                {"samples", samples},
                {"no_samples", end.no_samples.empty() ? json() : json(end.no_samples)},
                {"checkpoint", end.checkpoint.string()},
                {"best", end.best.string()},
                {"losses", end.losses.string()},
                {"curve", end.curve.string()}};
    if (end.floor) object["floor"] = *end.floor;
    if (end.accuracy) {
      object["sentences"] = end.accuracy->sentences;
      object["agreeing"] = end.accuracy->agreeing;
      object["closing"] = end.accuracy->closing;
      object["in_language"] = end.accuracy->in_language;
    }
    print(object);
  }

  void stopped(std::int64_t step, const std::filesystem::path& run) override {
    print({{"event", "stopped"}, {"step", step}, {"run", run.string()}});
  }

 private:
  static void print(const json& object) { print_json(object); }
};

}  // namespace

std::unique_ptr<TrainReport> make_json_report() { return std::make_unique<JsonReport>(); }

}  // namespace needle
