// Whole sequences from an encoder's states. The encoder itself is a Decoder without its causal mask (S08);
// its objective of masked tokens is in needle/data/masking.h.
#pragma once

#include "needle/autograd.h"

namespace needle {

/// The mean of states [batch, time, width] where `real` (bool [batch, time], or none: everywhere): [batch,
/// width], zeros for a row without any. SequenceModel::head() makes its logits of it.
Tensor mean_state(const Tensor& states, const NDArray& real = {});

/// The state of each row's first real position, where a class token stands: [batch, width]. Throws on a row
/// without any.
Tensor class_state(const Tensor& states, const NDArray& real = {});

}  // namespace needle
