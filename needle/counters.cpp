#include "needle/counters.h"

#include <algorithm>

namespace needle {

double product_operations(std::span<const NDArray> inputs, std::span<const NDArray> outputs) {
  return 2.0 * static_cast<double>(outputs[0].count()) * static_cast<double>(inputs[0].size(-1));
}

double attention_pairs(const AttentionSettings& settings, std::int64_t batch, std::int64_t heads,
                       std::int64_t queries, std::int64_t keys) {
  if (!settings.key_mask.data && !settings.allowed.data) {
    std::int64_t pairs = 0;
    for (std::int64_t t = 0; t < queries; ++t) {
      const std::int64_t position = settings.offset + t;
      const std::int64_t end = settings.causal ? std::clamp<std::int64_t>(position + 1, 0, keys) : keys;
      const std::int64_t start =
          settings.window > 0 ? std::clamp<std::int64_t>(position - settings.window + 1, 0, end) : 0;
      pairs += end - start;
    }
    return static_cast<double>(batch * heads * pairs);
  }
  return 0;
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
  return forward("matmul") + forward("matmul_transposed") + forward("linear") + forward("attention");
}

std::uint64_t OperationCounter::calls(const std::string& op) const {
  const auto found = forward_.find(op);
  return found == forward_.end() ? 0 : found->second.calls;
}

}  // namespace needle
