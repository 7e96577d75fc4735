#include "needle/data/tasks.h"

#include <sstream>
#include <utility>

#include "backends/error.h"

namespace needle {

namespace {

const std::int64_t kIgnored = RowFormat{}.ignore_index;

/// Copies `values` to the beginning of row `row`.
template <class T>
void put(const std::vector<T>& values, std::vector<T>& all, std::size_t row, std::size_t time) {
  std::copy(values.begin(), values.end(), all.begin() + static_cast<std::ptrdiff_t>(row * time));
}

}  // namespace

void TaskExample::add(std::int64_t id) { add(id, kIgnored, -1); }

void TaskExample::add(std::int64_t id, std::int64_t label, std::int64_t distance) {
  ids.push_back(id);
  labels.push_back(label);
  distances.push_back(distance);
}

GeneratedDataset::GeneratedDataset(Task task, std::uint64_t seed, std::int64_t validation_count)
    : task_(std::move(task)),
      training_(Generator(seed).child(0)),
      validation_(Generator(seed).child(1)),
      validation_count_(validation_count),
      hash_(hash_tokens({})) {
  require(validation_count > 0, task_.name, ": wanted validation examples, got ", validation_count);
  const std::vector<std::int64_t> name(task_.name.begin(), task_.name.end());
  hash_ = hash_tokens(name, hash_);
  for (const std::int64_t number : {static_cast<std::int64_t>(seed), task_.longest_row, validation_count})
    hash_ = hash_tokens({&number, 1}, hash_);
  // Not features: their last bits may depend on the machine's mathematics.
  constexpr std::int64_t kHashed = 32;
  for (const DataPart part : {DataPart::training, DataPart::validation}) {
    for (const TaskExample& example : examples(part, 0, kHashed)) {
      for (const TokenRow* row : {&example.ids, &example.labels, &example.source})
        hash_ = hash_tokens(*row, hash_);
    }
  }
}

std::vector<TaskExample> GeneratedDataset::examples(DataPart part, std::int64_t first,
                                                    std::int64_t count) const {
  require(first >= 0 && count > 0, task_.name, ": wanted a positive batch and position, got ", count, " and ",
          first);
  const Generator& stream = part == DataPart::training ? training_ : validation_;
  std::vector<TaskExample> result;
  for (std::int64_t number = first; number < first + count; ++number) {
    Generator random = stream.child(static_cast<std::uint64_t>(number));
    result.push_back(task_.example(random, part));
  }
  return result;
}

Batch GeneratedDataset::batch_of(const std::vector<TaskExample>& examples) const {
  const auto width = [&](TokenRow TaskExample::*row, std::int64_t longest) {
    std::int64_t most = 1;
    for (const TaskExample& example : examples) most = std::max(most, std::ssize(example.*row));
    constexpr std::int64_t kMultiple = 8;
    return std::min((most + kMultiple - 1) / kMultiple * kMultiple, longest);
  };
  const std::size_t rows = examples.size();
  Batch batch;
  batch.rows = std::ssize(examples);
  batch.time = width(&TaskExample::ids, task_.longest_row);
  batch.source_time = width(&TaskExample::source, task_.longest_source);
  batch.feature_width = task_.feature_width;
  const auto time = static_cast<std::size_t>(batch.time),
             source_time = static_cast<std::size_t>(batch.source_time),
             feature_width = static_cast<std::size_t>(batch.feature_width);
  batch.ids.assign(rows * time, kPadId);
  batch.labels.assign(rows * time, kIgnored);
  batch.real.assign(rows * time, 0);
  batch.source_ids.assign(rows * source_time, kPadId);
  batch.source_real.assign(rows * source_time, 0);
  batch.features.assign(rows * time * feature_width, 0);
  if (!examples.front().distances.empty()) batch.distances.assign(rows * time, -1);
  for (std::size_t row = 0; row < rows; ++row) {
    const TaskExample& example = examples[row];
    put(example.ids, batch.ids, row, time);
    put(example.labels, batch.labels, row, time);
    put(std::vector<std::uint8_t>(example.ids.size(), 1), batch.real, row, time);
    put(example.distances, batch.distances, row, time);
    put(example.source, batch.source_ids, row, source_time);
    put(std::vector<std::uint8_t>(example.source.size(), 1), batch.source_real, row, source_time);
    put(example.features, batch.features, row, time * feature_width);
  }
  batch.valid_targets =
      std::ssize(batch.labels) - std::count(batch.labels.begin(), batch.labels.end(), kIgnored);
  batch.positions = positions_of(batch.real, batch.time);
  return batch;
}

Batch GeneratedDataset::next_training_batch(DataPosition& position, std::int64_t size) {
  const Batch batch = batch_of(examples(DataPart::training, position.examples_seen, size));
  position.examples_seen += size;
  return batch;
}

std::vector<Batch> GeneratedDataset::validation_batches(std::int64_t size) const {
  std::vector<Batch> batches;
  for (std::int64_t first = 0; first < validation_count_; first += size) {
    const std::int64_t count = std::min(size, validation_count_ - first);
    batches.push_back(batch_of(examples(DataPart::validation, first, count)));
  }
  return batches;
}

std::string GeneratedDataset::description() const {
  std::ostringstream text;
  text << task_.name << ": generated rows of up to " << longest_row() << " positions, " << validation_count_
       << " for validation, vocabulary " << task_.tokenizer.vocabulary_size() << "; " << task_.remark;
  return text.str();
}

}  // namespace needle
