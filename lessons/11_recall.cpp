// Lesson 11: recurrence, convolution and attention, and what each can remember.
//
// The task: pairs of a key and a value go by, then keys are asked for, and the pair lies 2, 4, 6 or 8
// positions back. A recurrent network has to carry all pairs along in its state, a convolution sees a fixed
// number of positions, attention looks back wherever the same key stood. So the accuracy by distance tells
// them apart; chance is one in eight.
//
// Exercise: with kernel 3 and dilation 1 in both layers, the convolution here reads 5 positions. Which
// dilations make a convolution of kernel 3 read at least n positions, without a hole, in as few layers as
// possible? (answers/11_recall.h)
#include <cstdio>

#include "needle/data/tasks.h"
#include "needle/needle.h"
#include "needle/train/trainer.h"

using namespace needle;

struct Family {
  const char* name;
  ModelKind kind;
  std::int64_t width, layers;  // about 40,000 parameters each
  int steps;
};

void train(const Family& family, Dataset& data) {
  TrainSettings settings;
  settings.model = DecoderConfig::of_size(0, data.longest_row(), family.width, family.layers, 4);
  settings.model.kind = family.kind;
  settings.model.tied = false;
  settings.model.initialisation = Initialisation::uniform;
  settings.learning_rate = 0.003;
  settings.batch = 32;
  settings.steps = family.steps;
  Trainer trainer(settings, data);
  double seconds = 0;
  while (trainer.steps_done() < settings.steps) seconds += trainer.step().seconds;
  const Evaluation result = trainer.evaluate();
  std::printf("  %-12s %7.0f %7d %6.1f s   ", family.name,
              static_cast<double>(trainer.model().parameter_count()), family.steps, seconds);
  for (const auto& [distance, hits] : result.by_distance) std::printf("%6.1f %%", 100 * hits.share());
  std::printf("\n");
  std::fflush(stdout);
}

int main() {
  GeneratedDataset data(recall_task(8), 1, 500);
  std::printf("%s\n\n", data.description().c_str());
  std::printf("  model        numbers   steps   time      correct, pair 2, 4, 6, 8 positions back\n");
  train({"lstm", ModelKind::lstm, 48, 2, 1200}, data);
  train({"convolution", ModelKind::convolution, 76, 2, 1200}, data);
  train({"attention", ModelKind::decoder, 40, 2, 1200}, data);
}
