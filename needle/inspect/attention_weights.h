// Which keys the attention of a layer looks at: its weights in one pass, on request.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "needle/inspect/heat_map.h"
#include "needle/models/sequence_model.h"

namespace needle {

/// The weights of one attention: rows sum to 1, or are 0 where no key is allowed.
struct LayerWeights {
  std::string path;  ///< dotted path of its module
  NDArray weights;   ///< [batch, heads, queries, keys]; none where another layer was asked for
};

/// All attentions of a pass without dropout, in the order in which they run; with `layer`, counted from 0 in
/// that order, only its weights are computed. Throws when there is no such layer.
std::vector<LayerWeights> attention_weights_of(SequenceModel& model, const SequenceInput& input,
                                               std::optional<std::int64_t> layer = {});

/// The weights of one head in one row of the batch: queries down, keys across, labelled with their tokens.
/// Throws when there is no such head or row, or when the tokens are not as many.
HeatMap attention_picture(const LayerWeights& layer, std::int64_t row, std::int64_t head,
                          const std::vector<std::string>& queries, const std::vector<std::string>& keys);

}  // namespace needle
