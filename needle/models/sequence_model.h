// The one interface of all sequence models.
#pragma once

#include "needle/models/model_config.h"
#include "needle/ops/cross_entropy.h"

namespace needle {

/// A batch of sequences as a model reads it.
struct SequenceInput {
  NDArray ids;        ///< i64 [batch, time]
  NDArray real;       ///< bool [batch, time]: true = a real token; none: all real
  NDArray positions;  ///< i64 [batch, time]; none: counted from `real`

  NDArray source_ids = {};   ///< i64 [batch, source time]: what an encoder-decoder translates
  NDArray source_real = {};  ///< bool [batch, source time]; none: all real
  NDArray features =
      {};  ///< f32 [batch, time, feature width]: positions that are no tokens, as an image's patches
};

/// ids -> embedded -> states -> logits, in three steps: so that the boundary check differentiates from the
/// embedded input, and generation projects only the last state.
class SequenceModel : public Module {
 public:
  /// [batch, time, width].
  virtual Tensor embed(const SequenceInput& input, const Pass& pass) = 0;
  /// [batch, time, width] -> [batch, time, width].
  virtual Tensor states(const Tensor& embedded, const SequenceInput& input, const Pass& pass) = 0;
  /// [..., width] -> [..., vocabulary].
  virtual Tensor head(const Tensor& states) = 0;
  /// cross_entropy() of the head's logits; models may do better than to make them all at once.
  virtual Tensor head_loss(const Tensor& states, const NDArray& labels, const LossOptions& options = {}) {
    return cross_entropy(head(states), labels, options);
  }
  /// Room to remember `longest` positions of `batch` rows; keys and values stored as `storage`, or as the
  /// weights. An Error for models that cannot go on from a past.
  virtual Cache empty_state(std::int64_t batch, std::int64_t longest, std::optional<DType> storage = {}) = 0;
  virtual const ModelConfig& config() const = 0;
  std::int64_t vocabulary_size() const { return config().vocabulary; }
  /// The most positions it can read; 0: no limit.
  virtual std::int64_t context() const = 0;

  /// Logits of all positions, [batch, time, vocabulary].
  Tensor forward(const SequenceInput& input, const Pass& pass = {}) {
    return head(states(embed(input, pass), input, pass));
  }
  /// The loss of the logits of all positions against labels i64 [batch, time].
  Tensor loss(const SequenceInput& input, const NDArray& labels, const LossOptions& options = {},
              const Pass& pass = {}) {
    return head_loss(states(embed(input, pass), input, pass), labels, options);
  }
};

}  // namespace needle
