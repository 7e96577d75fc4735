// What transformers have between their embedding and their head.
#pragma once

#include "needle/models/sequence_model.h"

namespace needle {

/// Positions, blocks, and the final norm (pre-norm only).
class Transformer : public Module {
 public:
  Transformer(const ModelConfig& config, const Init& init);
  /// Embedded tokens [batch, time, width] as the residual stream begins: with their positions, unless those
  /// are the attention's. Throws on a position past the context.
  Tensor begin(const Tensor& tokens, const SequenceInput& input, const Pass& pass);
  /// [batch, time, width] -> the same. Blocks with cross-attention read `memory` [batch, source time, width]
  /// where input.source_real says so. Throws when a bidirectional one is given a past.
  Tensor states(const Tensor& embedded, const SequenceInput& input, const Pass& pass,
                const Tensor& memory = {});
  /// As SequenceModel's. An Error for a bidirectional one, and past the context.
  Cache empty_state(std::int64_t batch, std::int64_t longest, std::optional<DType> storage = {}) const;
  void list(Parts& parts) override;

 private:
  ModelConfig config_;
  std::optional<Embedding> position_embedding_;
  Tensor sinusoidal_;  // [context, width]: a constant, made anew rather than saved
  Dropout dropout_;
  std::vector<Block> blocks_;
  std::optional<Norm> norm_;
};

}  // namespace needle
