// Layer norm and RMS norm over the last axis.
#pragma once

#include <optional>

#include "needle/autograd.h"

namespace needle {

/// (x - mean) / sqrt(variance + epsilon) * weight + bias over the last axis, with the biased variance (Ba et
/// al. 2016, section 3). x [..., width]; weight and bias [width] or undefined. The result is of x's type, or
/// rounded to the 16-bit type that is wanted.
Tensor layer_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {}, double epsilon = 1e-5,
                  std::optional<DType> result = {});
/// x / sqrt(mean(x^2) + epsilon) * weight over the last axis (Zhang and Sennrich 2019, equation 4).
Tensor rms_norm(const Tensor& x, const Tensor& weight = {}, double epsilon = 1e-5,
                std::optional<DType> result = {});

// The same in simple ops.
Tensor layer_norm_definition(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon);
Tensor rms_norm_definition(const Tensor& x, const Tensor& weight, double epsilon);

}  // namespace needle
