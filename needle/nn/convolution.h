// Causal convolution as a module.
#pragma once

#include "needle/nn/layers.h"

namespace needle {

/// y_t = f(b + sum over r of x_{t - r dilation} W_r) + residual_t: weight [kernel, in, out], bias [out] or
/// none.
struct CausalConvolution : Module {
  CausalConvolution(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t steps,
                    bool with_bias, const Init& init);
  std::int64_t dilation;
  Tensor weight, bias;
  /// x [batch, time, in] -> [batch, time, out].
  Tensor forward(const Tensor& x, Epilogue epilogue = Epilogue::none, const Tensor& residual = {}) const;
  void list(Parts& parts) override;
};

}  // namespace needle
