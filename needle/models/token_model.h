// What all models of tokens share: their table, and the head after their last state.
#pragma once

#include <optional>

#include "needle/models/sequence_model.h"

namespace needle {

/// A table of tokens before the layers, a norm and a head after them. A model adds its layers: states(),
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

 protected:
  /// What modules of such a model begin with.
  static Init init_of(const ModelConfig& config, Generator& random, Device device, DType dtype);
  /// `config` is resolved. An Error when the device has no room for such a model.
  TokenModel(const ModelConfig& config, const Init& init);
  /// Throws unless the ids are [batch, time], and the mask too.
  void require_ids(const SequenceInput& input) const;
  /// The start of the residual stream: `x` in its type, dropped out.
  Tensor begin_stream(const Tensor& x, const Pass& pass) const;
  /// The end of list().
  void list_head(Parts& parts);

  ModelConfig config_;
  Embedding token_embedding_;
  Dropout dropout_;
  std::optional<Norm> norm_;
  std::optional<Linear> head_;
};

}  // namespace needle
