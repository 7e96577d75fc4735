#include "needle/data/dataset.h"

#include <algorithm>
#include <numeric>
#include <sstream>
#include <utility>

#include "backends/error.h"
#include "needle/random.h"

namespace needle {
namespace {

std::uint64_t hash_rows(std::span<const TokenRow> rows, std::uint64_t hash) {
  const auto count = static_cast<std::int64_t>(rows.size());
  hash = hash_tokens({&count, 1}, hash);
  for (const TokenRow& row : rows) {
    const auto length = static_cast<std::int64_t>(row.size());
    hash = hash_tokens(row, hash_tokens({&length, 1}, hash));
  }
  return hash;
}

// Checked once here, so that a long row is found at the start and not in the middle of a run.
void check_rows(const char* part, std::span<const TokenRow> rows, const DatasetSettings& settings) {
  const RowFormat& format = settings.format;
  require(!rows.empty(), settings.name, ": no ", part, " rows");
  for (std::size_t index = 0; index < rows.size(); ++index) {
    const auto needed = static_cast<std::int64_t>(rows[index].size()) + 1;
    require(format.crop || needed <= format.context, settings.name, ": ", part, " row ", index,
            " needs a context of ", needed, ", got ", format.context);
  }
}

void check_stream(const char* part, std::span<const std::int64_t> tokens, const DatasetSettings& settings) {
  const std::int64_t needed = settings.format.context + 1;
  require(settings.format.context > 0, settings.name, ": context ", settings.format.context,
          " must be positive");
  require(static_cast<std::int64_t>(tokens.size()) >= needed, settings.name, ": the ", part, " split has ",
          tokens.size(), " tokens, a window needs ", needed,
          " (context + 1); take a longer text, a smaller context or another validation share");
}

std::string describe(const DatasetSettings& settings, std::size_t training, std::size_t validation,
                     const char* unit) {
  std::ostringstream text;
  text << settings.name << ": " << training << " training and " << validation << " validation " << unit
       << ", vocabulary " << settings.tokenizer.vocabulary_size();
  if (!settings.remark.empty()) text << "; " << settings.remark;
  return text.str();
}

void check_batch(const DataPosition& position, std::int64_t size) {
  require(size > 0 && position.examples_seen >= 0, "data: wanted a positive batch and position, got ", size,
          " and ", position.examples_seen);
}

}  // namespace

std::uint64_t hash_tokens(std::span<const std::int64_t> ids, std::uint64_t hash) {
  for (const std::int64_t id : ids) {
    for (int shift = 0; shift < 64; shift += 8) {
      hash = (hash ^ ((static_cast<std::uint64_t>(id) >> shift) & 0xFF)) * 0x100000001B3;
    }
  }
  return hash;
}

RowsDataset::RowsDataset(std::vector<TokenRow> training, std::vector<TokenRow> validation,
                         DatasetSettings settings)
    : training_(std::move(training)),
      validation_(std::move(validation)),
      settings_(std::move(settings)),
      hash_(hash_rows(validation_, hash_rows(training_, hash_tokens({})))) {
  check_rows("training", training_, settings_);
  check_rows("validation", validation_, settings_);
}

const TokenRow& RowsDataset::training_row(std::int64_t example) {
  const std::int64_t epoch = example / examples_per_epoch();
  if (epoch != order_epoch_) {
    order_.resize(training_.size());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    Generator(settings_.seed).child(static_cast<std::uint64_t>(epoch)).shuffle(order_);
    order_epoch_ = epoch;
  }
  return training_[order_[static_cast<std::size_t>(example % examples_per_epoch())]];
}

Batch RowsDataset::next_training_batch(DataPosition& position, std::int64_t size) {
  check_batch(position, size);
  std::vector<TokenRow> rows;
  for (std::int64_t index = 0; index < size; ++index) rows.push_back(training_row(position.examples_seen++));
  return make_rows_batch(rows, settings_.format);
}

std::vector<Batch> RowsDataset::validation_batches(std::int64_t size) const {
  check_batch({}, size);
  std::vector<Batch> batches;
  for (std::span<const TokenRow> left = validation_; !left.empty();) {
    const std::size_t count = std::min(left.size(), static_cast<std::size_t>(size));
    batches.push_back(make_rows_batch(left.first(count), settings_.format));
    left = left.subspan(count);
  }
  return batches;
}

std::string RowsDataset::description() const {
  return describe(settings_, training_.size(), validation_.size(), "rows");
}

StreamDataset::StreamDataset(std::vector<std::int64_t> training, std::vector<std::int64_t> validation,
                             DatasetSettings settings)
    : training_(std::move(training)),
      validation_(std::move(validation)),
      settings_(std::move(settings)),
      hash_(hash_rows(std::vector<TokenRow>{training_, validation_}, hash_tokens({}))) {
  check_stream("training", training_, settings_);
  check_stream("validation", validation_, settings_);
}

Batch StreamDataset::next_training_batch(DataPosition& position, std::int64_t size) {
  check_batch(position, size);
  const Generator generator(settings_.seed);
  std::vector<std::int64_t> starts;
  for (std::int64_t index = 0; index < size; ++index) {
    const auto example = static_cast<std::uint64_t>(position.examples_seen++);
    starts.push_back(generator.child(example).below(training_starts()));
  }
  return make_stream_batch(training_, starts, settings_.format.context);
}

std::vector<Batch> StreamDataset::validation_batches(std::int64_t size) const {
  check_batch({}, size);
  const std::int64_t context = settings_.format.context;
  const std::int64_t windows = (static_cast<std::int64_t>(validation_.size()) - 1) / context;
  std::vector<Batch> batches;
  for (std::int64_t first = 0; first < windows; first += size) {
    std::vector<std::int64_t> starts;
    for (std::int64_t window = first; window < std::min(first + size, windows); ++window) {
      starts.push_back(window * context);
    }
    batches.push_back(make_stream_batch(validation_, starts, context));
  }
  return batches;
}

std::int64_t StreamDataset::training_starts() const {
  return static_cast<std::int64_t>(training_.size()) - settings_.format.context;
}

std::int64_t StreamDataset::examples_per_epoch() const {
  return (static_cast<std::int64_t>(training_.size()) - 1) / settings_.format.context;
}

std::string StreamDataset::description() const {
  return describe(settings_, training_.size(), validation_.size(), "tokens");
}

}  // namespace needle
