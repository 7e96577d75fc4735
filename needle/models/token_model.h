// What all models of tokens share: their table, and the head after their last state.
#pragma once

#include <optional>

#include "needle/models/model_init.h"
#include "needle/models/sequence_model.h"

namespace needle {

/// A table of tokens before the layers, a head after them. A model adds what lies between: states(),
/// empty_state(), and list().
class TokenModel : public SequenceModel {
 public:
  const ModelConfig& config() const override { return config_; }
  /// The rows of the token table, dropped out.
  Tensor embed(const SequenceInput& input, const Pass& pass) override;
  /// Logits by the head, or by the token table where they are tied.
  Tensor head(const Tensor& states) override;
  Tensor head_loss(const Tensor& states, const NDArray& labels, const LossOptions& options = {}) override;
  std::int64_t context() const override { return 0; }
  /// A tied head gets a quantised copy of the token table; ids are still looked up in the table itself.
  void quantize() override;

 protected:
  /// `config` is resolved. The head is left to make_head(), which comes last.
  TokenModel(const ModelConfig& config, const Init& init);
  void make_head(const Init& init);
  /// The rows of the token table. Throws unless the ids are [batch, time], the mask too, and the past is this
  /// model's.
  Tensor tokens(const SequenceInput& input, const Pass& pass);

  ModelConfig config_;
  Embedding token_embedding_;
  std::optional<Linear> head_;
  std::optional<QuantizedWeight> quantized_table_;  ///< [width, vocabulary]: the tied head, once quantised
};

}  // namespace needle
