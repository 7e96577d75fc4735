#include "apps/train_report.h"

#include <cmath>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "needle/data/corpus.h"
#include "needle/generate/generator.h"
#include "needle/threads.h"

namespace needle {

namespace {

void line(const std::string& label, const std::string& text) {
  std::cout << std::left << std::setw(15) << label << text << '\n';
}

/// Texts that the model writes from BOS to EOS.
std::vector<std::string> sample_texts(Trainer& trainer, std::int64_t count,
                                      std::vector<bool>* ended = nullptr) {
  const Tokenizer& tokenizer = trainer.data().tokenizer();
  GenerateSettings settings;
  settings.new_tokens = trainer.model().context();
  settings.end = kEndId;
  settings.sampler.vocabulary = tokenizer.vocabulary_size();
  Generator random(static_cast<std::uint64_t>(trainer.settings().seed) + 1000);
  std::vector<std::string> texts;
  constexpr std::int64_t kRows = 100;
  for (std::int64_t done = 0; done < count; done += kRows) {
    const std::vector<std::vector<std::int64_t>> prompts(
        static_cast<std::size_t>(std::min(kRows, count - done)), {kBeginId});
    for (const auto& answer : generate(trainer.model(), prompts, settings, random, trainer.device())) {
      texts.push_back(tokenizer.decode(answer));
      if (ended) ended->push_back(!answer.empty() && answer.back() == kEndId);
    }
  }
  return texts;
}

/// How the model's own sentences fare by the corpus's rules.
struct Accuracy {
  std::int64_t sentences = 0, verbs = 0, right_verbs = 0, brackets = 0, right_brackets = 0, in_language = 0;
};

Accuracy measure_accuracy(Trainer& trainer) {
  constexpr std::int64_t kSentences = 1000;
  const Corpus corpus;
  Accuracy total;
  for (const std::string& text : sample_texts(trainer, kSentences)) {
    const SentenceCheck check = corpus.check(text);
    ++total.sentences;
    total.verbs += check.verbs;
    total.right_verbs += check.right_verbs;
    total.brackets += check.brackets;
    total.right_brackets += check.right_brackets;
    total.in_language += check.in_language;
  }
  return total;
}

double percent(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 100;
}

std::string decaying_tensors(const Optimizer& optimizer) {
  std::int64_t tensors = 0, numbers = 0, rest = 0;
  double decay = 0;
  for (const ParameterGroup& group : optimizer.groups()) {
    for (const Parameter& parameter : group.parameters) {
      if (group.weight_decay == 0) {
        ++rest;
        continue;
      }
      decay = group.weight_decay;
      ++tensors;
      numbers += parameter.tensor.array().count();
    }
  }
  return std::to_string(tensors) + " matrices and tables (" + with_commas(numbers) + " numbers) by " +
         fixed(decay, 3) + "; " + std::to_string(rest) + " vectors do not";
}

/// The loss of the first validation batch under the model as it is.
double present_loss(Trainer& trainer) {
  std::vector<Batch> batches = trainer.data().validation_batches(trainer.settings().batch);
  batches.resize(1);
  return evaluate(trainer.model(), batches, -100, trainer.device()).loss;
}

}  // namespace

void TrainReport::start(Trainer& trainer, const RunFolder& run, double estimated_seconds) {
  const TrainSettings& s = trainer.settings();
  const double loss = present_loss(trainer), uniform = std::log(static_cast<double>(s.model.vocabulary));
  const std::optional<double> floor = trainer.data().floor();
  if (json_) {
    nlohmann::json json = {{"event", "start"},
                           {"run", run.path().string()},
                           {"parameters", trainer.model().parameter_count()},
                           {"model", s.model},
                           {"training", s},
                           {"data", trainer.data().description()},
                           {"loss", loss},
                           {"log_vocabulary", uniform},
                           {"device", trainer.device().name()},
                           {"library", trainer.device()->description()},
                           {"threads", threads()},
                           {"estimated_seconds", estimated_seconds},
                           {"step", trainer.steps_done()}};
    if (floor) json["floor"] = *floor;
    std::cout << json.dump() << std::endl;
    return;
  }
  const DecoderConfig& m = s.model;
  line("run", run.path().string());
  line("data", trainer.data().description());
  line("model", "decoder, " + std::to_string(m.layers) + " layers of width " + std::to_string(m.width) +
                    ", " + std::to_string(m.heads) + " heads, context " + std::to_string(m.context) +
                    ", vocabulary " + std::to_string(m.vocabulary));
  line("parameters",
       with_commas(trainer.model().parameter_count()) + (m.tied ? " (the tied table counted once)" : ""));
  line("weight decay", decaying_tensors(trainer.optimizer()));
  line("loss now", fixed(loss, 4) + " nats per target; a uniform guess has ln " +
                       std::to_string(m.vocabulary) + " = " + fixed(uniform, 4) +
                       (floor ? "; no model can go below " + fixed(*floor, 4) : ""));
  line("computed by", trainer.device().name() + ": " + trainer.device()->description() + ", threads " +
                          std::to_string(threads()));
  line("steps",
       std::to_string(s.steps - trainer.steps_done()) +
           (trainer.steps_done() > 0 ? " more, from step " + std::to_string(trainer.steps_done()) : "") +
           ", about " + duration(estimated_seconds) + " (measured on three steps); Ctrl-C saves and stops");
  std::cout << std::endl;
}

void TrainReport::step(const HistoryRow& row, double seconds_left) {
  if (row.validation) last_validation_ = *row.validation;
  if (!row.step.skipped.empty()) {
    live_.clear();
    std::cerr << "warning: step " << row.step.step << " changed nothing: " << row.step.skipped << '\n';
  }
  if (json_) {
    nlohmann::json json = {{"event", "step"},
                           {"step", row.step.step},
                           {"loss", row.step.loss},
                           {"learning_rate", row.step.learning_rate},
                           {"gradient_norm", row.step.gradient_norm},
                           {"tokens_per_second", row.tokens_per_second}};
    if (row.validation) json["validation_loss"] = *row.validation;
    if (!row.step.skipped.empty()) json["skipped"] = row.step.skipped;
    std::cout << json.dump() << '\n';
    return;
  }
  const std::string text = "step " + std::to_string(row.step.step) + "   loss " + fixed(row.step.loss, 4) +
                           (last_validation_ > 0 ? "   validation " + fixed(last_validation_, 4) : "") +
                           "   " + with_commas(static_cast<std::int64_t>(row.tokens_per_second)) +
                           " tokens/s   " + duration(seconds_left) + " left";
  if (row.validation) {
    live_.clear();
    std::cout << text << std::endl;
  } else {
    live_.show(text);
  }
}

void TrainReport::stopped(Trainer& trainer, const RunFolder& run) {
  live_.clear();
  if (json_) {
    std::cout << nlohmann::json{{"event", "stopped"},
                                {"step", trainer.steps_done()},
                                {"run", run.path().string()}}
                     .dump()
              << std::endl;
    return;
  }
  std::cout << "\nstopped after step " << trainer.steps_done()
            << " and saved; go on with\n  needle train --resume " << run.path().string() << std::endl;
}

void TrainReport::finish(Trainer& trainer, const RunFolder& run) {
  live_.clear();
  const std::optional<double> floor = trainer.data().floor();
  std::vector<bool> ended;
  const std::vector<std::string> samples = sample_texts(trainer, 3, &ended);
  const bool is_corpus = trainer.settings().data.source == DataSource::corpus;
  const Accuracy accuracy = is_corpus ? measure_accuracy(trainer) : Accuracy();
  const std::filesystem::path folder = run.path();
  const std::string checkpoint = (folder / ("step-" + std::to_string(trainer.steps_done()))).string();
  if (json_) {
    nlohmann::json json = {{"event", "end"},
                           {"step", trainer.steps_done()},
                           {"validation_loss", last_validation_},
                           {"best_validation_loss", trainer.best_validation()},
                           {"samples", samples},
                           {"checkpoint", checkpoint},
                           {"losses", (folder / "losses.csv").string()},
                           {"curve", (folder / "losses.svg").string()}};
    if (floor) json["floor"] = *floor, json["above_floor_percent"] = 100 * (last_validation_ / *floor - 1);
    if (is_corpus) {
      json["agreement_percent"] = percent(accuracy.right_verbs, accuracy.verbs);
      json["brackets_percent"] = percent(accuracy.right_brackets, accuracy.brackets);
      json["in_language_percent"] = percent(accuracy.in_language, accuracy.sentences);
    }
    std::cout << json.dump() << std::endl;
    return;
  }
  std::cout << '\n';
  line("validation", fixed(last_validation_, 4) + " nats per target" +
                         (floor ? ", " + fixed(100 * (last_validation_ / *floor - 1), 1) +
                                      " % above the floor of " + fixed(*floor, 4)
                                : "") +
                         "; best " + fixed(trainer.best_validation(), 4));
  if (is_corpus) {
    const std::string of = " in " + with_commas(accuracy.sentences) + " sampled sentences";
    line("agreement", fixed(percent(accuracy.right_verbs, accuracy.verbs), 1) + " % of " +
                          with_commas(accuracy.verbs) + " verbs right" + of);
    line("brackets", fixed(percent(accuracy.right_brackets, accuracy.brackets), 1) + " % of " +
                         with_commas(accuracy.brackets) + " closed in order");
    line("grammatical", fixed(percent(accuracy.in_language, accuracy.sentences), 1) +
                            " % of the sentences are in the language");
  }
  for (std::size_t i = 0; i < samples.size(); ++i) {
    line(i == 0 ? "samples" : "", samples[i] + (ended[i] ? "" : " [cut at the context]"));
  }
  line("checkpoint", checkpoint + ", the best in " + (folder / "best").string());
  line("losses", (folder / "losses.svg").string() + " and " + (folder / "losses.csv").string());
  std::cout << std::flush;
}

}  // namespace needle
