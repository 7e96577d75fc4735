// A data set of one's own, outside the library: letters and the same letters backwards, made as they are
// asked for. Its batches go into the library's own training loop.
#include <cmath>
#include <iostream>

#include "needle/train/trainer.h"

using namespace needle;

/// Rows like "bfac|cafb": the first half is chance, the second can be learned.
class Backwards : public Dataset {
 public:
  Batch next_training_batch(DataPosition& position, std::int64_t size) override {
    Generator stream = Generator(kSeed).child(1);
    std::vector<TokenRow> rows;
    for (std::int64_t i = 0; i < size; ++i)
      rows.push_back(row(stream.child(static_cast<std::uint64_t>(position.examples_seen++))));
    return make_rows_batch(rows, format());
  }

  std::vector<Batch> validation_batches(std::int64_t size) const override {
    Generator stream = Generator(kSeed).child(2);
    std::vector<Batch> batches;
    for (std::int64_t done = 0; done < kValidationRows; done += size) {
      std::vector<TokenRow> rows;
      for (std::int64_t i = done; i < std::min(done + size, kValidationRows); ++i)
        rows.push_back(row(stream.child(static_cast<std::uint64_t>(i))));
      batches.push_back(make_rows_batch(rows, format()));
    }
    return batches;
  }

  std::int64_t examples_per_epoch() const override { return 4096; }  // 8 letters in 4 places
  const Tokenizer& tokenizer() const override { return tokenizer_; }
  std::uint64_t hash() const override { return kSeed; }  // the rows depend on nothing else
  std::string description() const override { return "letters and the same letters backwards"; }
  /// Four letters of eight cost ln 8 each; the other six targets (|, four letters, EOS) nothing.
  std::optional<double> floor() const override { return 4 * std::log(8.0) / 10; }

  static constexpr std::int64_t kContext = 10;

 private:
  static constexpr std::uint64_t kSeed = 7;
  static constexpr std::int64_t kValidationRows = 256;

  static RowFormat format() {
    RowFormat format;
    format.context = kContext;
    return format;
  }

  TokenRow row(Generator random) const {
    std::string text;
    for (int i = 0; i < 4; ++i) text += static_cast<char>('a' + random.below(8));
    return tokenizer_.encode(text + "|" + std::string(text.rbegin(), text.rend()));
  }

  Tokenizer tokenizer_ = Tokenizer::characters("abcdefgh|");
};

int main() {
  Backwards data;
  TrainSettings settings;
  settings.model.context = Backwards::kContext;
  settings.model.width = 64;
  settings.model.layers = settings.model.heads = 2;
  settings.steps = 500;
  settings.warmup = 50;
  settings.batch = 32;
  settings.learning_rate = 3e-3;
  Trainer trainer(settings, data);
  while (trainer.steps_done() < settings.steps) {
    const StepResult step = trainer.step();
    if (step.step % 100 == 0) std::cout << "step " << step.step << ", loss " << step.loss << '\n';
  }
  const double loss = trainer.evaluate().loss, floor = *data.floor();
  std::cout << "validation loss " << loss << ", floor " << floor << '\n';
  return loss < 1.05 * floor ? 0 : 1;
}
