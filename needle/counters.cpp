#include "needle/counters.h"

#include <algorithm>

namespace needle {

double product_operations(std::span<const NDArray> inputs, std::span<const NDArray> outputs) {
  return 2.0 * static_cast<double>(outputs[0].count()) * static_cast<double>(inputs[0].size(-1));
}

bool is_product(std::string_view op) {
  return op.starts_with("linear") || op.starts_with("matmul") || op == "attention" || op == "recurrence" ||
         op == "causal_convolution";
}

double attention_pairs(const AttentionSettings& settings, const Shape& full, const NDArray& key_mask,
                       const NDArray& allowed) {
  const std::int64_t batch = full[0], heads = full[1], queries = full[2], keys = full[3];
  std::vector<bool> real, may;
  if (key_mask.defined()) real = key_mask.to_vector<bool>();
  if (allowed.defined()) may = allowed.broadcast_to(full).to_vector<bool>();
  std::int64_t pairs = 0;
  std::vector<std::int64_t> real_before(static_cast<std::size_t>(keys) + 1);  // of this batch row
  for (std::int64_t row = 0; row < batch; ++row) {
    for (std::int64_t j = 0; j < keys; ++j) {
      const bool counts = real.empty() || real[static_cast<std::size_t>(row * keys + j)];
      real_before[static_cast<std::size_t>(j) + 1] = real_before[static_cast<std::size_t>(j)] + counts;
    }
    for (std::int64_t t = 0; t < queries; ++t) {
      const std::int64_t position = settings.offset + t;
      const std::int64_t end = settings.causal ? std::clamp<std::int64_t>(position + 1, 0, keys) : keys;
      const std::int64_t start =
          settings.window > 0 ? std::clamp<std::int64_t>(position - settings.window + 1, 0, end) : 0;
      if (may.empty()) {
        pairs += heads *
                 (real_before[static_cast<std::size_t>(end)] - real_before[static_cast<std::size_t>(start)]);
        continue;
      }
      for (std::int64_t head = 0; head < heads; ++head) {
        for (std::int64_t j = start; j < end; ++j) {
          pairs += may[static_cast<std::size_t>(((row * heads + head) * queries + t) * keys + j)] &&
                   (real.empty() || real[static_cast<std::size_t>(row * keys + j)]);
        }
      }
    }
  }
  return static_cast<double>(pairs);
}

OpTally& OpTally::operator+=(const OpTally& other) {
  calls += other.calls;
  operations += other.operations;
  bytes_read += other.bytes_read;
  bytes_written += other.bytes_written;
  bytes_kept += other.bytes_kept;
  return *this;
}

namespace {

double bytes_of(std::span<const NDArray> arrays) {
  double bytes = 0;
  for (const NDArray& array : arrays) bytes += array.defined() ? static_cast<double>(array.bytes()) : 0;
  return bytes;
}

}  // namespace

OpTally tally_of(const OpEvent& event) {
  const auto is_view = [&](const NDArray& output) {
    return !output.defined() || output.shares_elements_with(event.inputs.front());
  };
  OpTally tally{.calls = 1, .operations = event.operations, .bytes_kept = bytes_of(event.kept)};
  if (!event.inputs.empty() && std::all_of(event.outputs.begin(), event.outputs.end(), is_view)) return tally;
  tally.bytes_read = bytes_of(event.inputs);
  tally.bytes_written = bytes_of(event.outputs);
  return tally;
}

void OperationCounter::after(const OpEvent& event) {
  OpTally tally = tally_of(event);
  tally.bytes_kept = 0;
  for (const NDArray& array : event.kept) {
    if (kept_.insert(array.storage()).second)
      tally.bytes_kept += static_cast<double>(array.storage().lock()->bytes());
  }
  tallies_[{event.phase, event.op, event.path}] += tally;
}

OpTally OperationCounter::sum(Phase phase, const std::string& op) const {
  OpTally total;
  for (const auto& [key, tally] : tallies_) {
    if (key.phase == phase && (op.empty() || key.op == op)) total += tally;
  }
  return total;
}

double OperationCounter::products(Phase phase) const {
  double total = 0;
  for (const auto& [key, tally] : tallies_)
    total += key.phase == phase && is_product(key.op) ? tally.operations : 0;
  return total;
}

}  // namespace needle
