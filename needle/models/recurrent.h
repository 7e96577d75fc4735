// Recurrent networks: RNN, GRU and LSTM, several layers on a residual stream.
#pragma once

#include "needle/models/token_model.h"
#include "needle/nn/recurrent.h"

namespace needle {

/// x + recurrence(norm(x)).
struct RecurrentBlock : Module {
  RecurrentBlock(const ModelConfig& config, const Init& init);
  Norm norm;
  RecurrentLayer recurrence;
  Dropout dropout;
  /// x [batch, time, width] -> the same; `state` is replaced by the one after the last step.
  Tensor forward(const Tensor& x, RecurrentState& state, const NDArray& real, const Pass& pass) const;
  void list(Parts& parts) override;
};

/// A token's row goes through blocks whose states are all that is remembered (S28). With a cache, states are
/// taken from it and left in it as numbers: while training, backpropagation through time is cut off there.
class RecurrentModel : public TokenModel {
 public:
  RecurrentModel(const ModelConfig& config, Generator& random, Device device = cpu(),
                 DType dtype = DType::f32);

  Tensor states(const Tensor& embedded, const SequenceInput& input, const Pass& pass) override;
  Cache empty_state(std::int64_t batch, std::int64_t longest, std::optional<DType> storage = {}) override;
  void list(Parts& parts) override;

 private:
  RecurrentModel(const ModelConfig& config, const Init& init);
  std::vector<RecurrentBlock> blocks_;
  Norm norm_;
};

}  // namespace needle
