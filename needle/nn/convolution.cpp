#include "needle/nn/convolution.h"

namespace needle {

CausalConvolution::CausalConvolution(std::int64_t in, std::int64_t out, std::int64_t kernel,
                                     std::int64_t steps, bool with_bias, const Init& init)
    : dilation(steps) {
  require(in > 0 && out > 0 && kernel > 0 && steps > 0,
          "convolution: sizes, kernel and dilation must be positive, got ", in, ", ", out, ", ", kernel,
          " and ", steps);
  weight = initial_weight({kernel, in, out}, kernel * in, init);
  if (with_bias) bias = initial_bias(out, kernel * in, init);
}

Tensor CausalConvolution::forward(const Tensor& x, Epilogue epilogue, const Tensor& residual) const {
  const Scope scope(*this);
  return causal_convolution(x, weight, bias, dilation, epilogue, residual);
}

void CausalConvolution::list(Parts& parts) {
  parts("weight", weight);
  parts("bias", bias);
}

}  // namespace needle
