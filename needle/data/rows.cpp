#include "needle/data/rows.h"

#include <algorithm>

#include "backends/error.h"

namespace needle {
namespace {

// A row before padding: as many labels as inputs.
struct Example {
  TokenRow inputs, labels;
};

Batch pad(const std::vector<Example>& examples, const RowFormat& format) {
  std::size_t longest = 1;
  for (const Example& example : examples) longest = std::max(longest, example.inputs.size());
  const std::int64_t multiple = format.width_multiple;
  const std::int64_t rounded = (static_cast<std::int64_t>(longest) + multiple - 1) / multiple * multiple;

  Batch batch;
  batch.rows = static_cast<std::int64_t>(examples.size());
  batch.time = std::min(rounded, format.context);
  const auto time = static_cast<std::size_t>(batch.time);
  batch.ids.assign(examples.size() * time, kPadId);
  batch.labels.assign(examples.size() * time, format.ignore_index);
  batch.real.assign(examples.size() * time, 0);
  for (std::size_t row = 0; row < examples.size(); ++row) {
    const auto& [inputs, labels] = examples[row];
    const std::size_t first = format.padding == PaddingSide::left ? time - inputs.size() : 0;
    const auto start = static_cast<std::ptrdiff_t>(row * time + first);
    std::copy(inputs.begin(), inputs.end(), batch.ids.begin() + start);
    std::copy(labels.begin(), labels.end(), batch.labels.begin() + start);
    std::fill_n(batch.real.begin() + start, inputs.size(), std::uint8_t{1});
    batch.valid_targets += std::count_if(labels.begin(), labels.end(),
                                         [&](std::int64_t label) { return label != format.ignore_index; });
  }
  batch.positions = positions_of(batch.real, batch.time);
  return batch;
}

void check(const RowFormat& format) {
  require(format.context > 0 && format.width_multiple > 0, "rows: context ", format.context,
          " and width multiple ", format.width_multiple, " must be positive");
}

// Fits `inputs` into the context: true if they had to be cropped.
bool crop(TokenRow& inputs, std::size_t row, const RowFormat& format) {
  const auto length = static_cast<std::int64_t>(inputs.size());
  if (length <= format.context) return false;
  require(format.crop, "rows: row ", row, " needs a context of ", length, ", got ", format.context,
          "; take a larger context or crop the rows");
  inputs.resize(static_cast<std::size_t>(format.context));
  return true;
}

}  // namespace

Batch make_rows_batch(std::span<const TokenRow> rows, const RowFormat& format) {
  check(format);
  std::vector<Example> examples;
  examples.reserve(rows.size());
  for (const TokenRow& tokens : rows) {
    Example example{{format.begin_id}, tokens};
    example.inputs.insert(example.inputs.end(), tokens.begin(), tokens.end());
    example.labels.push_back(format.end_id);
    if (crop(example.inputs, examples.size(), format)) example.labels.resize(example.inputs.size());
    examples.push_back(std::move(example));
  }
  return pad(examples, format);
}

Batch make_shifted_batch(std::span<const TokenRow> sequences, const RowFormat& format) {
  check(format);
  std::vector<Example> examples;
  examples.reserve(sequences.size());
  for (const TokenRow& sequence : sequences) {
    Example example{sequence, sequence};
    if (!sequence.empty()) example.labels.erase(example.labels.begin());
    crop(example.inputs, examples.size(), format);
    example.labels.resize(example.inputs.size(), format.ignore_index);
    examples.push_back(std::move(example));
  }
  return pad(examples, format);
}

Batch make_stream_batch(std::span<const std::int64_t> tokens, std::span<const std::int64_t> starts,
                        std::int64_t context) {
  require(context > 0, "stream: context ", context, " must be positive");
  const std::int64_t available =
      std::max<std::int64_t>(static_cast<std::int64_t>(tokens.size()) - context, 0);
  Batch batch;
  batch.rows = static_cast<std::int64_t>(starts.size());
  batch.time = context;
  batch.valid_targets = batch.rows * context;
  batch.real.assign(static_cast<std::size_t>(batch.valid_targets), 1);
  for (const std::int64_t start : starts) {
    require(start >= 0 && start < available, "stream: a window cannot start at ", start, ": ", tokens.size(),
            " tokens hold ", available, " windows of ", context, " + 1");
    const auto first = tokens.begin() + start;
    batch.ids.insert(batch.ids.end(), first, first + context);
    batch.labels.insert(batch.labels.end(), first + 1, first + context + 1);
  }
  batch.positions = positions_of(batch.real, batch.time);
  return batch;
}

std::vector<std::int64_t> positions_of(std::span<const std::uint8_t> real, std::int64_t time) {
  std::vector<std::int64_t> positions;
  positions.reserve(real.size());
  std::int64_t seen = 0;
  for (std::size_t entry = 0; entry < real.size(); ++entry) {
    if (entry % static_cast<std::size_t>(time) == 0) seen = 0;
    seen += real[entry] != 0 ? 1 : 0;
    positions.push_back(std::max<std::int64_t>(seen - 1, 0));
  }
  return positions;
}

std::vector<std::int64_t> last_real_columns(const Batch& batch) {
  std::vector<std::int64_t> columns;
  for (std::int64_t row = 0; row < batch.rows; ++row) {
    std::int64_t column = batch.time - 1;
    while (column >= 0 && batch.real[static_cast<std::size_t>(row * batch.time + column)] == 0) --column;
    require(column >= 0, "rows: row ", row, " has no real token");
    columns.push_back(column);
  }
  return columns;
}

}  // namespace needle
