// The small layers: linear map, embedding, norms, dropout, feed-forward.
#pragma once

#include <optional>

#include "needle/nn/module.h"
#include "needle/ops/ops.h"

namespace needle {

class Cache;

/// What forward() takes where it matters.
struct Pass {
  bool training = false;        ///< dropout is on
  Generator* random = nullptr;  ///< what dropout draws from
  Cache* past = nullptr;        ///< keys and values of earlier positions, extended by the pass
};

/// A weight at its beginning; `inputs` is how many numbers each of its outputs is a sum of. `residual`: its
/// output is added to the residual stream, so that it begins smaller.
Tensor initial_weight(const Shape& shape, std::int64_t inputs, const Init& init, bool residual = false);
/// The bias [size] that goes with it.
Tensor initial_bias(std::int64_t size, std::int64_t inputs, const Init& init);

/// y = f(x W + b) + residual over the last axis: weight [in, out], bias [out] or none. Once it is quantised,
/// it computes without gradients alone.
struct Linear : Module {
  /// `residual` as in initial_weight().
  Linear(std::int64_t in, std::int64_t out, bool with_bias, const Init& init, bool residual = false);
  Tensor weight, bias;
  std::optional<QuantizedWeight> quantized;  ///< in place of the weight
  bool keeps_float = false;                  ///< others read the weight too, so that it is never quantised
  Tensor forward(const Tensor& x, Epilogue epilogue = Epilogue::none, const Tensor& residual = {},
                 std::optional<DType> result = {}) const;
  /// The type of the weight, or of what the quantised one stands for.
  DType dtype() const { return quantized ? DType::f32 : weight.dtype(); }
  void quantize() override;
  void list(Parts& parts) override;
};

/// One row of weight [rows, width] an id.
struct Embedding : Module {
  Embedding(std::int64_t rows, std::int64_t width, const Init& init);
  Tensor weight;
  /// ids [...] -> [..., width].
  Tensor forward(const NDArray& ids) const;
  void list(Parts& parts) override;
};

/// Layer norm or RMS norm over the last axis; weight and bias [width], RMS norm without bias.
struct Norm : Module {
  Norm(NormKind which, std::int64_t width, bool with_bias, const Init& init, double small = 1e-5);
  NormKind kind;
  double epsilon;
  Tensor weight, bias;
  Tensor forward(const Tensor& x, std::optional<DType> result = {}) const;
  void list(Parts& parts) override;
};

/// Layer norm (Ba et al. 2016).
struct LayerNorm : Norm {
  LayerNorm(std::int64_t width, const Init& init, double small = 1e-5)
      : Norm(NormKind::layer, width, true, init, small) {}
};

/// RMS norm (Zhang and Sennrich 2019).
struct RMSNorm : Norm {
  RMSNorm(std::int64_t width, const Init& init, double small = 1e-5)
      : Norm(NormKind::rms, width, false, init, small) {}
};

/// x in the type in which the residual stream is kept (precision.h).
Tensor as_residual(const Tensor& x);

/// Zeroes elements with chance p while training; the identity otherwise. Added to the residual where there is
/// one.
struct Dropout : Module {
  explicit Dropout(double chance);
  double p;
  Tensor forward(const Tensor& x, const Pass& pass, const Tensor& residual = {}) const;
  void list(Parts&) override {}
};

/// What stands between the two maps of a feed-forward layer. `gated` is silu(x gate) times x up (Shazeer
/// 2020).
enum class Activation { relu, gelu, gelu_tanh, gated };

/// Expansion, activation, contraction, at each position alone: [..., width] -> [..., width]; added to the
/// residual where there is one.
struct FeedForward : Module {
  FeedForward(std::int64_t width, std::int64_t inner, Activation with, bool with_bias, const Init& init);
  Activation activation;
  std::optional<Linear> gate;  ///< only when gated
  Linear up, down;
  Tensor forward(const Tensor& x, const Tensor& residual = {}, std::optional<DType> result = {}) const;
  void list(Parts& parts) override;
};

}  // namespace needle
