// Causal convolutions, several layers on a residual stream, their dilations by a schedule.
#pragma once

#include "needle/models/token_model.h"
#include "needle/nn/convolution.h"

namespace needle {

/// x + f(convolution(norm(x))).
struct ConvolutionBlock : Module {
  ConvolutionBlock(const ModelConfig& config, std::int64_t layer, const Init& init);
  Norm norm;
  CausalConvolution convolution;
  Epilogue activation;
  Dropout dropout;
  /// x [batch, time, width] -> the same. `before` holds the inputs of the convolution that came before,
  /// [batch, (kernel - 1) dilation, width], and gets the last ones; none: zeros, which nobody wants to know.
  Tensor forward(const Tensor& x, NDArray* before, const NDArray& real, const Pass& pass) const;
  void list(Parts& parts) override;
};

/// A token's row goes through blocks that each look (kernel - 1) dilation positions back (van den Oord et al.
/// 2016, "WaveNet", section 2.1; S29).
class ConvolutionalModel : public TokenModel {
 public:
  /// Gated activations are an Error.
  ConvolutionalModel(const ModelConfig& config, Generator& random, Device device = cpu(),
                     DType dtype = DType::f32);

  Tensor states(const Tensor& embedded, const SequenceInput& input, const Pass& pass) override;
  Cache empty_state(std::int64_t batch, std::int64_t longest, std::optional<DType> storage = {}) override;
  void list(Parts& parts) override;

 private:
  ConvolutionalModel(const ModelConfig& config, const Init& init);
  std::vector<ConvolutionBlock> blocks_;
  Norm norm_;
};

}  // namespace needle
