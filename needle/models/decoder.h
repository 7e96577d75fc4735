// The decoder-only transformer; without its causal mask the same weights are an encoder (S08).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "needle/models/sequence_model.h"

namespace needle {

/// Everything that defines a decoder: the shape of its blocks, and what stands around them.
struct DecoderConfig : BlockConfig {
  std::int64_t vocabulary = 0;
  std::int64_t context = 64;
  std::int64_t layers = 4;
  bool tied = true;  ///< head = token table transposed, without bias
  Initialisation initialisation = Initialisation::normal;

  /// The default one with these sizes.
  static DecoderConfig of_size(std::int64_t vocabulary, std::int64_t context, std::int64_t width,
                               std::int64_t layers, std::int64_t heads);
  /// The config with every 0 filled in. Throws when sizes do not fit together.
  DecoderConfig resolved() const;
  /// How many numbers the parameters of such a decoder hold, by formula.
  std::int64_t parameter_count() const;
};

void to_json(nlohmann::json& json, const DecoderConfig& config);
/// Unknown names and impossible values are an Error.
void from_json(const nlohmann::json& json, DecoderConfig& config);

/// Token and position embedding, blocks, final norm (pre-norm only), head.
class Decoder : public SequenceModel {
 public:
  /// `init.scheme` is taken from the config.
  Decoder(const DecoderConfig& config, Generator& random, Device device = cpu(), DType dtype = DType::f32);

  const DecoderConfig& config() const { return config_; }
  Tensor embed(const SequenceInput& input, const Pass& pass) override;
  Tensor states(const Tensor& embedded, const SequenceInput& input, const Pass& pass) override;
  Tensor head(const Tensor& states) override;
  Tensor head_loss(const Tensor& states, const NDArray& labels, const LossOptions& options = {}) override;
  Cache empty_state(std::int64_t batch, std::int64_t longest) override;
  std::int64_t vocabulary_size() const override { return config_.vocabulary; }
  std::int64_t context() const override { return config_.context; }
  void list(Parts& parts) override;
  /// An independent decoder with the same numbers.
  Decoder clone();

 private:
  Decoder(const DecoderConfig& config, const Init& init);
  NDArray positions_of(const SequenceInput& input, const Pass& pass) const;

  DecoderConfig config_;
  Embedding token_embedding_;
  std::optional<Embedding> position_embedding_;
  Tensor sinusoidal_;  // [context, width]: a constant, made anew rather than saved
  Dropout dropout_;
  std::vector<Block> blocks_;
  std::optional<Norm> norm_;
  std::optional<Linear> head_;
};

}  // namespace needle
