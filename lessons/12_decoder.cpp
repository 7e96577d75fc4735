// Lesson 12: a decoder, trained from nothing, and what it says.
//
// Rows of a batch are as wide as the longest; PAD fills up the others. No target stands there: its label is
// the ignore index, which the loss leaves out, and so does its mean, which is over real targets. The corpus
// knows the exact probability of each of its sentences, hence the loss that nobody can beat.
//
// Exercise: the loss of a padded batch in simple ops, the mean of -log p(label) over the labels that are not
// ignored, and 0 where all are. It must have the value and the gradient of cross_entropy().
// (answers/12_decoder.h)
#include <cmath>
#include <cstdio>

#include "needle/data/corpus.h"
#include "needle/data/rows.h"
#include "needle/needle.h"

using namespace needle;

Batch batch_of(const Corpus& corpus, const Tokenizer& tokenizer, std::int64_t rows, Generator& random,
               std::vector<std::string>* sentences = nullptr) {
  std::vector<TokenRow> tokens;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::string sentence = corpus.sample(random);
    if (sentences) sentences->push_back(sentence);
    tokens.push_back(tokenizer.encode(sentence));
  }
  return make_rows_batch(tokens, {.context = 80});
}

/// Mean of -log p over the real targets.
Tensor loss_of(Decoder& model, const Batch& batch) {
  const Shape shape{batch.rows, batch.time};
  const SequenceInput input{NDArray::from(batch.ids, shape), NDArray::from(batch.real, shape), {}};
  return model.loss(input, NDArray::from(batch.labels, shape));
}

int main() {
  const Corpus corpus;
  const Tokenizer tokenizer = corpus.tokenizer();
  Generator random(1), held_out = random.child(1);
  DecoderConfig config = DecoderConfig::of_size(tokenizer.vocabulary_size(), 80, 64, 2, 4);
  config.initialisation = Initialisation::uniform;
  config.positions = Positions::rotary;
  config.tied = false;
  Decoder model(config, random);
  Adam optimizer(groups_by_rank(model.parameters(), 0.01), AdamDecay::decoupled, 0.9, 0.98);
  constexpr std::int64_t kSteps = 1200;
  const Schedule schedule{.peak = 4e-3, .final = 4e-5, .warmup = 100, .steps = kSteps};

  std::vector<std::string> sentences;
  const Batch validation = batch_of(corpus, tokenizer, 200, held_out, &sentences);
  const double floor = corpus.mean_negative_log_probability(sentences);
  std::printf("%.0f parameters; losses in nats a character: %.3f by chance, %.3f at best\n",
              static_cast<double>(model.parameter_count()), std::log(config.vocabulary), floor);
  const auto places = static_cast<double>(validation.labels.size());
  std::printf("%.0f %% of the held-out places are PAD, which the loss leaves out\n\n",
              100 - 100 * static_cast<double>(validation.valid_targets) / places);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const Tensor loss = loss_of(model, batch_of(corpus, tokenizer, 16, random));
    loss.backward();
    optimizer.clip({.limit = 1});
    optimizer.set_learning_rate(schedule.rate(step));
    optimizer.step();
    optimizer.clear_gradients();
    if ((step + 1) % 200 != 0) continue;
    const NoGrad off;
    std::printf("  step %4.0f   loss %.3f   held out %.3f\n", static_cast<double>(step + 1), loss.item(),
                loss_of(model, validation).item());
    std::fflush(stdout);
  }

  GenerateSettings settings;
  settings.new_tokens = 79;
  settings.ends = {kEndId};
  std::printf("\ndrawn from the model; the grammar makes those marked +\n");
  for (const Answer& answer : generate(model, std::vector(8, TokenRow{kBeginId}), settings, random)) {
    const std::string text = tokenizer.decode(answer.ids);
    std::printf("  %c %s\n", corpus.check(text).in_language ? '+' : '-', text.c_str());
  }
}
