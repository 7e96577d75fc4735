// The report of a run for people.
#include <algorithm>
#include <iostream>
#include <sstream>
#include <utility>

#include "apps/terminal.h"
#include "apps/train_report.h"
#include "needle/models/names_of_choices.h"

namespace needle {

namespace {

template <class... Parts>
std::string text_of(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

/// "blocks.3.ffn.up.weight" -> "blocks.*.ffn.up.weight": parts that are numbers become stars.
std::string without_numbers(const std::string& name) {
  std::string result;
  std::istringstream parts(name);
  for (std::string part; std::getline(parts, part, '.');) {
    const bool number = part.find_first_not_of("0123456789") == std::string::npos;
    result += (result.empty() ? "" : ".") + (number ? "*" : part);
  }
  return result;
}

/// Rows of names, those that differ in a block's number written once.
void print_names(const std::vector<std::string>& names) {
  constexpr std::size_t kWidth = 90;
  std::vector<std::string> kinds;
  for (const std::string& name : names) {
    const std::string kind = without_numbers(name);
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
  }
  std::string row;
  for (const std::string& kind : kinds) {
    if (!row.empty() && row.size() + kind.size() > kWidth) print_row("", std::exchange(row, ""));
    row += kind + ' ';
  }
  if (!row.empty()) print_row("", row);
}

void print_model(const TrainStart& start) {
  const ModelConfig& model = start.settings.model;
  print_row("model", text_of(name_of_choice(model.kind), " of ", model.layers, " layers, width ", model.width,
                             ", ", model.has_attention() ? text_of(model.heads, " heads, ") : std::string(),
                             "context ", model.context, ", vocabulary ", model.vocabulary));
  print_row("parameters",
            with_commas(start.parameters) +
                (model.tied && model.kind != ModelKind::patches ? ", the tied table once" : ""));
  print_row("weight decay",
            text_of(start.settings.weight_decay, " on ", start.decaying.size(), " of ",
                    start.decaying.size() + start.not_decaying.size(), " tensors, ",
                    with_commas(start.decaying_numbers), " numbers", start.decaying.empty() ? "" : ":"));
  print_names(start.decaying);
}

class TextReport final : public TrainReport {
 public:
  void start(const TrainStart& start) override {
    const TrainSettings& settings = start.settings;
    print_row("run", start.run.string());
    print_row("data", start.data);
    print_model(start);
    print_row("loss now", text_of(fixed(start.loss, 4), " nats per target; a blind guess has ln ",
                                  settings.model.vocabulary, " = ", fixed(start.uniform_loss, 4)));
    if (start.floor) print_row("floor", floor_text(start));
    print_row("computed by",
              text_of(start.device, ", ", start.threads, start.threads == 1 ? " thread" : " threads"));
    const std::string from = start.steps_done > 0 ? text_of(" more, after step ", start.steps_done) : "";
    print_row("steps",
              text_of(settings.steps - start.steps_done, from, ", each ",
                      settings.batch * settings.accumulate, " examples; about ",
                      duration(start.estimated_seconds), " on this machine; Ctrl-C saves and stops"));
    std::cout << std::endl;
  }

  void step(const StepResult& step, std::optional<double> validation_loss, double seconds_left) override {
    if (!step.skipped.empty()) {
      live_.clear();
      std::cerr << "warning: step " << step.step << " changed nothing: " << step.skipped << std::endl;
    }
    if (validation_loss) validation_ = "   validation " + fixed(*validation_loss, 4);
    const std::string text = text_of("step ", step.step, "   loss ", fixed(step.loss, 4), validation_, "   ",
                                     with_commas(static_cast<std::int64_t>(step.tokens_per_second())),
                                     " tokens/s   ", duration(seconds_left), " left");
    if (!validation_loss) return live_.show(text);
    live_.clear();
    std::cout << text << std::endl;
  }

  void finish(const TrainEnd& end) override {
    live_.clear();
    std::cout << '\n';
    print_row("validation", fixed(end.validation.loss, 4) + " nats per target, the best " +
                                fixed(end.best_validation_loss, 4));
    if (end.floor) {
      print_row("floor", text_of(fixed(*end.floor, 4), " nats per target; the validation loss is ",
                                 percent(end.validation.loss - *end.floor, *end.floor), " above"));
    }
    print_hits(end);
    if (end.accuracy) print_accuracy(*end.accuracy);
    if (!end.no_samples.empty()) print_row("samples", "none: " + end.no_samples);
    for (std::size_t i = 0; i < end.samples.size(); ++i) {
      const Writing& sample = end.samples[i];
      print_row(i == 0 ? "samples" : "", sample.text + (sample.ended ? "" : " ..."));
    }
    print_row("checkpoint", end.checkpoint.string() + "; the best in " + end.best.string());
    print_row("losses", end.curve.string() + " and " + end.losses.string());
    std::cout << std::flush;
  }

  void stopped(std::int64_t step, const std::filesystem::path& run) override {
    live_.clear();
    std::cout << "\nstopped and saved after step " << step << "; go on with\n  needle train --resume "
              << run.string() << std::endl;
  }

 private:
  static std::string floor_text(const TrainStart& start) {
    std::string text = fixed(*start.floor, 4) + " nats per target, exact for these validation sentences";
    if (start.entropy) text += "; the grammar's entropy " + fixed(*start.entropy, 4);
    return text;
  }

  static void print_hits(const TrainEnd& end) {
    const auto share = [](const Hits& hits) {
      return percent(static_cast<double>(hits.hit), static_cast<double>(hits.targets));
    };
    const Evaluation& v = end.validation;
    print_row("accuracy",
              text_of(share(v.tokens), " of ", with_commas(v.tokens.targets), " targets, ", share(v.rows),
                      " of ", with_commas(v.rows.targets), " rows without a mistake",
                      end.chance ? "; chance is " + percent(*end.chance, 1) : std::string()));
    constexpr std::size_t kInARow = 8;
    std::string row;
    std::size_t shown = 0;
    for (const auto& [distance, hits] : v.by_distance) {
      row += text_of(distance, ": ", share(hits), "   ");
      if (++shown % kInARow != 0 && shown != v.by_distance.size()) continue;
      print_row(shown <= kInARow ? "by distance" : "", std::exchange(row, ""));
    }
  }

  static void print_accuracy(const CorpusAccuracy& accuracy) {
    const auto share = [&](std::int64_t count) {
      return percent(static_cast<double>(count), static_cast<double>(accuracy.sentences));
    };
    const std::string of = text_of(" of ", accuracy.sentences, " sampled sentences");
    print_row("agreement", share(accuracy.agreeing) + of + ": every verb agrees with its subject");
    print_row("brackets", share(accuracy.closing) + of + ": all close, in order");
    print_row("grammar", share(accuracy.in_language) + of + " are its own");
  }

  LiveLine live_;
  std::string validation_;
};

}  // namespace

std::unique_ptr<TrainReport> make_text_report() { return std::make_unique<TextReport>(); }

}  // namespace needle
