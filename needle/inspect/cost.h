// What a sequence model costs: by formula for given sizes, and as the engine counts it in a real pass.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "needle/counters.h"
#include "needle/models/sequence_model.h"

namespace needle {

/// The sizes of a pass.
struct PassSizes {
  std::int64_t batch = 1, time = 1;
  std::int64_t source = 1;  ///< positions that an encoder reads, where there is one beside the decoder
};

/// Operations of the products of one part of a forward pass over a whole batch.
struct PartCost {
  std::string part;
  double unmasked;  ///< by the formula in which every query reads every key
  double masked;    ///< of attention only the pairs that causality and the window allow, the rest alike
};
/// Every part with products: in a transformer layer projections 8BTD^2, scores and mixing 4BT^2D,
/// feed-forward 16BTD^2 (S31; with fewer key heads, another inner width or gates, what these need), an
/// encoder's and the cross-attention's scores apart (S33); in a recurrent layer 2BTD gD twice, for g gates;
/// in a convolution 2BTkD^2; then the head.
std::vector<PartCost> forward_cost(const ModelConfig& config, const PassSizes& sizes);
/// The sum of the masked ones.
double operations_of(const std::vector<PartCost>& parts);
/// The part that an op belongs to, by its name and module; "" when it is no product.
std::string part_of(const OpKey& op);

/// (query, key) pairs of `queries` positions that come after `past` others, in one head: all of them, or
/// those that causality and a window (0: none) allow.
double query_key_pairs(std::int64_t queries, std::int64_t past, bool causal, std::int64_t window);
/// Entries of one weights tensor [batch, heads, queries, keys], which fused attention never holds (S32).
double weights_entries(std::int64_t batch, std::int64_t heads, std::int64_t queries, std::int64_t keys);
/// Bytes that a pass remembers for the next: keys and values 2BLT Hkv d_h s (S36), those of a source beside
/// them (S39), a recurrent layer's state BDs (an LSTM's twice), a convolution's last inputs B(k-1)d Ds.
double state_bytes(const ModelConfig& config, const PassSizes& sizes, DType dtype = DType::f32);

/// `sizes` as an input of a model, all ids 0. Encoder-decoders get a source, and models of features get
/// those.
SequenceInput input_of(const ModelConfig& config, const PassSizes& sizes, Device device);

/// What a real pass took.
struct CountedPass {
  OperationCounter counter;
  double peak_bytes = 0;  ///< the most memory that was in use at once, beyond what was before
  /// Operations of a part's products in the forward pass.
  double forward(const std::string& part) const;
};
/// One pass of the model: forward under NoGrad, or with `backward` both ways, from a gradient of ones.
CountedPass count_pass(SequenceModel& model, const PassSizes& sizes, bool backward, Device device);

/// A prompt of sizes.time tokens, then `steps` passes of one token each, with a cache.
struct CountedDecoding {
  double pairs = 0;  ///< that self-attention read after the prompt, per row, layer and head (S37)
  double bytes = 0;  ///< of what is remembered at the end
};
/// An Error for a model that cannot go on from a past.
CountedDecoding count_decoding(SequenceModel& model, const PassSizes& sizes, std::int64_t steps,
                               Device device);

/// The fewest steps from one position to the next layer's or step's by which the first of `time` positions
/// reaches the last one (S30): one for attention, time - 1 for a recurrence; none where it never does.
std::optional<std::int64_t> path_length(const ModelConfig& config, std::int64_t time);

/// What is compared between families of models.
struct ModelFacts {
  std::int64_t parameters = 0;
  double operations_per_token = 0;  ///< counted, products only, in a forward pass over one row
  std::optional<std::int64_t> path;
  std::int64_t receptive_field = 0;  ///< 0: everything before
};
/// Builds the model and runs one pass of one row of `time` positions (and a source of as many).
ModelFacts facts_of(const ModelConfig& config, std::int64_t time, Device device = cpu());

}  // namespace needle
