// Causal convolution over time.
#pragma once

#include "needle/autograd.h"

namespace needle {

/// y[b, t] = f(bias + sum over r of x[b, t - r dilation] weight[r]) + residual[b, t], f by the epilogue,
/// zeros before the start (van den Oord et al. 2016, section 2.1; S29): x [batch, time, in], weight [kernel,
/// in, out], bias [out] and residual [batch, time, out] or undefined; [batch, time, out].
Tensor causal_convolution(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                          std::int64_t dilation = 1, Epilogue epilogue = Epilogue::none,
                          const Tensor& residual = {});

/// The same as shifted products of the whole sequence.
Tensor causal_convolution_definition(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                     std::int64_t dilation, Epilogue epilogue = Epilogue::none,
                                     const Tensor& residual = {});

}  // namespace needle
