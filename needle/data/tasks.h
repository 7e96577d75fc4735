// The built-in tasks. Their examples are made by a rule, without end: a training example is a function of
// (seed, its number) alone.
#pragma once

#include <algorithm>
#include <functional>

#include "needle/data/dataset.h"
#include "needle/random.h"

namespace needle {

/// One example before padding. Only the positions that answer have a label.
struct TaskExample {
  TokenRow ids, labels;
  TokenRow distances;           ///< as Batch::distances; empty where nobody knows
  TokenRow source;              ///< what is translated; empty where nothing is
  std::vector<float> features;  ///< [positions, feature width]; empty where ids are read

  /// Appends a position that answers nothing.
  void add(std::int64_t id);
  /// Appends one that answers `label`, which a token `distance` positions back is the first to tell.
  void add(std::int64_t id, std::int64_t label, std::int64_t distance);
};

/// What an example is for; the random streams of the two differ.
enum class DataPart { training, validation };

/// A rule that makes examples, and what is known of all of them.
struct Task {
  std::string name;
  std::string remark;  ///< what makes it hard and how far chance goes; ends the description
  Tokenizer tokenizer = Tokenizer::bytes();
  std::int64_t longest_row = 0, longest_source = 0, feature_width = 0;
  double chance = 0;  ///< accuracy of whoever doesn't see what a label depends on; 0: none
  std::function<TaskExample(Generator&, DataPart)> example;
};

/// A random string, a delay, a mark, and the string again, which is scored: `.. abcabcab .... > abcabca`.
/// Each character lies between 8 and `distance` positions behind the one that answers it, by the row's delay;
/// 0: 24. Throws below 8.
Task copy_task(std::int64_t distance = 0);

/// Slots of two tokens: pairs of a key and its value among filler, then questions: a key that was seen 2, 4,
/// ... or `distance` (0: 24) positions before, and its value, which is scored: `aC .. bF .. aC`. Values are
/// independent, so that whoever sees less than the pair is at chance: a convolution fails just beyond its
/// receptive field. Throws unless even and at least 2.
Task recall_task(std::int64_t distance = 0);

/// Brackets of three kinds in random nesting; at each closing one the answer is whether it is of the kind
/// that its opening one wants: + or -. Half are of another kind, and close all the same. The opening bracket
/// lies at most `distance` positions back, under at most (distance + 1) / 2 open ones; 0: 24. Throws below 1.
Task brackets_task(std::int64_t distance = 0);

/// Numbers below 10000 in English: from the source `3047` to `three thousand and forty-seven`. A tenth of the
/// numbers is held out: it is validated on and never trained on.
Task translation_task();
/// An English number in [0, 10000).
std::string number_in_words(std::int64_t number);
/// Whether a number is held out, whatever the seed.
bool is_held_out(std::int64_t number);

/// Digits drawn as strokes of random width, place, size and slant in noise, 16 x 16 grey of mean 0 and
/// variance 1 each, cut into 4 x 4 patches: row by row, features [1 + 16, 16]. Position 0 is empty; it
/// answers the digit.
Task shapes_task();

/// The examples of a task as a data set, the validation's as many as `validation_count`.
class GeneratedDataset : public Dataset {
 public:
  GeneratedDataset(Task task, std::uint64_t seed, std::int64_t validation_count = 1000);

  Batch next_training_batch(DataPosition& position, std::int64_t size) override;
  std::vector<Batch> validation_batches(std::int64_t size) const override;
  /// There is no end of them; as many as the built-in corpus has.
  std::int64_t examples_per_epoch() const override { return 100000; }
  const Tokenizer& tokenizer() const override { return task_.tokenizer; }
  /// Of the task, the seed, and the first tokens of both parts.
  std::uint64_t hash() const override { return hash_; }
  std::string description() const override;
  std::optional<double> chance() const override {
    return task_.chance > 0 ? std::optional(task_.chance) : std::nullopt;
  }
  /// Of rows and of sources.
  std::int64_t longest_row() const override { return std::max(task_.longest_row, task_.longest_source); }
  bool has_source() const override { return task_.longest_source > 0; }
  std::int64_t feature_width() const override { return task_.feature_width; }

 private:
  /// Examples [first, first + count) of a part.
  std::vector<TaskExample> examples(DataPart part, std::int64_t first, std::int64_t count) const;
  Batch batch_of(const std::vector<TaskExample>& examples) const;

  Task task_;
  Generator training_, validation_;
  std::int64_t validation_count_;
  std::uint64_t hash_;
};

}  // namespace needle
