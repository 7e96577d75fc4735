#include "apps/train_report.h"

#include <cmath>

#include "needle/data/corpus.h"
#include "needle/threads.h"

namespace needle {

namespace {

constexpr std::int64_t kSamples = 3, kJudgedSentences = 500;

std::vector<Writing> sample(Trainer& trainer, std::int64_t count) {
  WritingSettings settings;
  settings.count = count;
  settings.seed = static_cast<std::uint64_t>(trainer.settings().seed);
  return write_texts(trainer.model(), trainer.data().tokenizer(), trainer.settings().data.source, settings,
                     trainer.device());
}

CorpusAccuracy judge(const std::vector<Writing>& sentences) {
  const Corpus corpus;
  CorpusAccuracy accuracy;
  for (const Writing& sentence : sentences) {
    const SentenceCheck check = corpus.check(sentence.text);
    accuracy.sentences += 1;
    accuracy.agreeing += check.agreement() ? 1 : 0;
    accuracy.closing += check.brackets_close() ? 1 : 0;
    accuracy.in_language += check.in_language && sentence.ended ? 1 : 0;
  }
  return accuracy;
}

void add_samples(Trainer& trainer, TrainEnd& end) {
  const DataSource source = trainer.settings().data.source;
  if (is_task(source)) {
    end.no_samples = "the task " + trainer.settings().data.name() + " scores answers, not texts";
    return;
  }
  const bool is_corpus = source == DataSource::corpus;
  try {
    end.samples = sample(trainer, is_corpus ? kJudgedSentences : kSamples);
    if (is_corpus) end.accuracy = judge(end.samples);
    end.samples.resize(kSamples);
  } catch (const Error& error) {  // of a model that has diverged, say; the rest of the report still counts
    end.samples.clear();
    end.no_samples = error.what();
  }
}

}  // namespace

TrainStart measure_start(Trainer& trainer, const RunFolder& run, double estimated_seconds) {
  TrainStart start;
  start.run = run.path();
  start.data = trainer.data().description();
  start.settings = trainer.settings();
  start.parameters = trainer.model().parameter_count();
  for (const ParameterGroup& group : trainer.optimizer().groups()) {
    for (const Parameter& parameter : group.parameters) {
      (group.weight_decay > 0 ? start.decaying : start.not_decaying).push_back(parameter.name);
      if (group.weight_decay > 0) start.decaying_numbers += parameter.tensor.array().count();
    }
  }
  const std::vector<Batch> batches = trainer.data().validation_batches(trainer.settings().batch);
  start.loss = evaluate(trainer.model(), {batches.front()}, trainer.device()).loss;
  start.uniform_loss = std::log(static_cast<double>(trainer.settings().model.vocabulary));
  start.floor = trainer.data().floor();
  if (trainer.settings().data.source == DataSource::corpus) start.entropy = Corpus().entropy_rate();
  start.device = trainer.device().name() + ": " + trainer.device()->description(trainer.settings().precision);
  start.threads = threads();
  start.steps_done = trainer.steps_done();
  start.estimated_seconds = estimated_seconds;
  return start;
}

TrainEnd measure_end(Trainer& trainer, const RunFolder& run, const std::filesystem::path& curve) {
  TrainEnd end;
  end.step = trainer.steps_done();
  end.validation = trainer.evaluate();
  end.best_validation_loss = trainer.best_validation();
  end.floor = trainer.data().floor();
  end.chance = trainer.data().chance();
  add_samples(trainer, end);
  end.checkpoint = run.checkpoint(end.step);
  end.best = run.best();
  end.losses = run.losses_file();
  end.curve = curve;
  return end;
}

}  // namespace needle
