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

void OperationCounter::after(const OpEvent& event) {
  if (event.phase != Phase::forward) return;
  Tally& tally = forward_[event.op];
  tally.operations += event.operations;
  ++tally.calls;
}

double OperationCounter::forward(const std::string& op) const {
  const auto found = forward_.find(op);
  return found == forward_.end() ? 0 : found->second.operations;
}

double OperationCounter::forward_products() const {
  double total = 0;
  for (const auto& [op, tally] : forward_) total += is_product(op) ? tally.operations : 0;
  return total;
}

std::uint64_t OperationCounter::calls(const std::string& op) const {
  const auto found = forward_.find(op);
  return found == forward_.end() ? 0 : found->second.calls;
}

}  // namespace needle
