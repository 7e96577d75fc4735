// The decoder-only transformer; without its causal mask the same weights are an encoder (S08).
#pragma once

#include "needle/models/token_model.h"

namespace needle {

/// Token and position embedding, blocks, final norm (pre-norm only), head.
class Decoder : public TokenModel {
 public:
  /// `init.scheme` is taken from the config.
  Decoder(const ModelConfig& config, Generator& random, Device device = cpu(), DType dtype = DType::f32);

  Tensor embed(const SequenceInput& input, const Pass& pass) override;
  Tensor states(const Tensor& embedded, const SequenceInput& input, const Pass& pass) override;
  Cache empty_state(std::int64_t batch, std::int64_t longest) override;
  std::int64_t context() const override { return config_.context; }
  void list(Parts& parts) override;
  /// An independent decoder with the same numbers.
  Decoder clone();

 private:
  Decoder(const ModelConfig& config, const Init& init);
  NDArray positions_of(const SequenceInput& input, const Pass& pass) const;

  std::optional<Embedding> position_embedding_;
  Tensor sinusoidal_;  // [context, width]: a constant, made anew rather than saved
  std::vector<Block> blocks_;
};

}  // namespace needle
