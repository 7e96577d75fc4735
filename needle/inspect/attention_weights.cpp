#include "needle/inspect/attention_weights.h"

#include "needle/ops/attention_watch.h"

namespace needle {

std::vector<LayerWeights> attention_weights_of(SequenceModel& model, const SequenceInput& input,
                                               std::optional<std::int64_t> layer) {
  std::vector<LayerWeights> all;
  {
    const AttentionWatch watch([&](const std::string& path, const auto& weights) {
      const bool wanted = !layer || *layer == std::ssize(all);
      all.push_back({path, wanted ? weights() : NDArray()});
    });
    const NoGrad off;
    model.states(model.embed(input, {}), input, {});
  }
  require(!all.empty(), "attention weights: this model has no attention");
  require(!layer || (*layer >= 0 && *layer < std::ssize(all)), "attention weights: there is no layer ",
          layer.value_or(0), "; layers are 0 to ", all.size() - 1);
  return all;
}

HeatMap attention_picture(const LayerWeights& layer, std::int64_t row, std::int64_t head,
                          const std::vector<std::string>& queries, const std::vector<std::string>& keys) {
  const NDArray& all = layer.weights;
  require(row >= 0 && row < all.size(0), "attention weights: there is no row ", row, " in a batch of ",
          all.size(0));
  require(head >= 0 && head < all.size(1), "attention weights: there is no head ", head, "; heads are 0 to ",
          all.size(1) - 1);
  const std::string title = layer.path + ", head " + std::to_string(head);
  return {title, "query", "key", queries, keys, all[row][head].to_vector<double>(), {}};
}

}  // namespace needle
