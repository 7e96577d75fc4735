// Counting arithmetic and memory traffic: what one op costs, and the observer that adds it up.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "needle/observer.h"

namespace needle {

/// Operations of a product with `outputs[0]` as its result: 2 n m k, batches included.
double product_operations(std::span<const NDArray> inputs, std::span<const NDArray> outputs);

/// Whether the op of that name is a product: a linear map, attention, a recurrence or a convolution.
bool is_product(std::string_view op);

/// How many (query, key) pairs of an attention over `full` [batch, heads, queries, keys] are allowed by the
/// settings' causality and window and by the masks, each as attention() takes it or undefined.
double attention_pairs(const AttentionSettings& settings, const Shape& full, const NDArray& key_mask = {},
                       const NDArray& allowed = {});

/// What ops cost. Bytes are those of the arrays, as if each were read or written once from end to end.
struct OpTally {
  std::uint64_t calls = 0;
  double operations = 0;
  double bytes_read = 0, bytes_written = 0;
  /// Forward: of the memory that the graph keeps for the gradients, parameters left out. Backward: of the
  /// gradients that stay with leaves. Memory that several ops keep counts with the first.
  double bytes_kept = 0;

  OpTally& operator+=(const OpTally& other);
};

/// One application of an op as a tally, with all that it keeps. Nothing is read or written where all outputs
/// are views of the first input, or gradients passed on.
OpTally tally_of(const OpEvent& event);

/// Which ops are added up together.
struct OpKey {
  Phase phase;
  std::string op, path;
  friend auto operator<=>(const OpKey&, const OpKey&) = default;
};

/// Adds up what every op that runs in its scope costs, by phase, op name and module. Products are counted as
/// 2 n m k and attention as 2 (key width + value width) a pair that the masks allow; other ops one an output
/// element.
class OperationCounter final : public Observer {
 public:
  void after(const OpEvent& event) override;
  const std::map<OpKey, OpTally>& tallies() const { return tallies_; }
  /// All ops of a phase, or those of one name.
  OpTally sum(Phase phase, const std::string& op = {}) const;
  /// Operations of a phase's products.
  double products(Phase phase) const;
  /// Operations of the ops of that name in the forward pass.
  double forward(const std::string& op) const { return sum(Phase::forward, op).operations; }
  double forward_products() const { return products(Phase::forward); }

 private:
  std::map<OpKey, OpTally> tallies_;
  std::set<std::weak_ptr<const Storage>, std::owner_less<>> kept_;
};

}  // namespace needle
