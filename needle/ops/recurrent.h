// Recurrent layers as one op over all steps.
#pragma once

#include "needle/autograd.h"

namespace needle {

/// What a recurrence gives: the state after each step [batch, time, width], and of an LSTM the cell after the
/// last.
struct RecurrentStates {
  Tensor states, last_cell;
};

/// h_t = cell(x_t W + b, h_{t-1} U + c) (RecurrentCell says which cells there are). `input` [batch, time,
/// gates * width] is x W + b of all steps at once, `weight` [width, gates * width] is U, `bias` c or
/// undefined, `state` [batch, width] h before the first step, `cell` the same of an LSTM's cells. Steps at
/// which `real` (bool [batch, time], or none) is false are left out: state and cell stay as they are.
RecurrentStates recurrence(RecurrentCell kind, const Tensor& input, const Tensor& weight, const Tensor& bias,
                           const Tensor& state, const Tensor& cell = {}, const NDArray& real = {});

/// The same, step by step, in simple ops.
RecurrentStates recurrence_definition(RecurrentCell kind, const Tensor& input, const Tensor& weight,
                                      const Tensor& bias, const Tensor& state, const Tensor& cell = {},
                                      const NDArray& real = {});

}  // namespace needle
