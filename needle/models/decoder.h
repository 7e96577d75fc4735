// The decoder-only transformer; without its causal mask the same weights are an encoder (S08).
#pragma once

#include "needle/models/token_model.h"
#include "needle/models/transformer.h"

namespace needle {

/// Token and position embedding, blocks, final norm (pre-norm only), head.
class Decoder : public TokenModel {
 public:
  /// The scheme of its beginning is the config's.
  Decoder(const ModelConfig& config, Generator& random, Device device = cpu(), DType dtype = DType::f32);

  Tensor embed(const SequenceInput& input, const Pass& pass) override;
  Tensor states(const Tensor& embedded, const SequenceInput& input, const Pass& pass) override;
  /// The same for one with cross-attention (config.cross): its blocks read `memory` as well, [batch, source
  /// time, width], where input.source_real says so.
  Tensor states(const Tensor& embedded, const SequenceInput& input, const Pass& pass, const Tensor& memory);
  Cache empty_state(std::int64_t batch, std::int64_t longest, std::optional<DType> storage = {}) override;
  std::int64_t context() const override { return config_.context; }
  void list(Parts& parts) override;
  /// An independent decoder with the same numbers.
  Decoder clone();

 private:
  Decoder(const ModelConfig& config, const Init& init);

  Transformer transformer_;
};

}  // namespace needle
