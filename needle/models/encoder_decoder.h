// The encoder-decoder transformer (Vaswani et al. 2017): what an encoder makes of a source, read by a
// decoder.
#pragma once

#include "needle/models/decoder.h"

namespace needle {

/// Reads input.source_ids both ways; what it makes of them is read by every layer of a causal decoder of the
/// input.ids, through projections of its own (S21). Each side has `layers` layers and a token table.
class EncoderDecoder : public SequenceModel {
 public:
  EncoderDecoder(const ModelConfig& config, Generator& random, Device device = cpu(),
                 DType dtype = DType::f32);

  /// The configs of its two sides.
  static ModelConfig encoder_config(const ModelConfig& config);
  static ModelConfig decoder_config(const ModelConfig& config);

  const ModelConfig& config() const override { return config_; }
  /// What the decoder reads of the source: [batch, source time, width].
  Tensor memory(const SequenceInput& input, const Pass& pass = {});
  Tensor embed(const SequenceInput& input, const Pass& pass) override;
  /// With a past, the source is read in its first pass alone, and may be left out of later ones (S39).
  Tensor states(const Tensor& embedded, const SequenceInput& input, const Pass& pass) override;
  Tensor head(const Tensor& states) override;
  Tensor head_loss(const Tensor& states, const NDArray& labels, const LossOptions& options = {}) override;
  Cache empty_state(std::int64_t batch, std::int64_t longest, std::optional<DType> storage = {}) override;
  std::int64_t context() const override { return config_.context; }
  void list(Parts& parts) override;

 private:
  ModelConfig config_;
  Decoder encoder_, decoder_;
};

}  // namespace needle
