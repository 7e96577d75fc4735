// Layer norm and RMS norm over the last axis.
#pragma once

#include "needle/autograd.h"

namespace needle {

/// (x - mean) / sqrt(variance + epsilon) * weight + bias over the last axis, with the biased variance (Ba et
/// al. 2016, section 3). x [..., width]; weight and bias [width] or undefined.
Tensor layer_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {}, double epsilon = 1e-5);
/// x / sqrt(mean(x^2) + epsilon) * weight over the last axis (Zhang and Sennrich 2019, equation 4).
Tensor rms_norm(const Tensor& x, const Tensor& weight = {}, double epsilon = 1e-5);

// The same in simple ops.
Tensor layer_norm_definition(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon);
Tensor rms_norm_definition(const Tensor& x, const Tensor& weight, double epsilon);

}  // namespace needle
