// Counting arithmetic: what one op costs, and the observer that adds it up.
#pragma once

#include <cstdint>
#include <map>
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

/// Adds up the operations of every op that runs in its scope, by op name. Products are counted as 2 n m k and
/// attention as 2 (key width + value width) a pair that the masks allow; other ops one an output element.
class OperationCounter final : public Observer {
 public:
  void after(const OpEvent& event) override;
  /// Operations of the ops of that name in the forward pass.
  double forward(const std::string& op) const;
  /// Operations of the forward pass's products.
  double forward_products() const;
  std::uint64_t calls(const std::string& op) const;

 private:
  struct Tally {
    double operations = 0;
    std::uint64_t calls = 0;
  };
  std::map<std::string, Tally> forward_;
};

}  // namespace needle
