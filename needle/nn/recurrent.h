// A recurrent layer, and the state that it carries from step to step.
#pragma once

#include "needle/nn/layers.h"

namespace needle {

/// What a recurrent layer remembers, [batch, width]; `cell` for an LSTM alone.
struct RecurrentState {
  Tensor hidden, cell;
  /// The same numbers as constants: where backpropagation through time is cut off.
  RecurrentState detach() const { return {hidden.detach(), cell.defined() ? cell.detach() : Tensor()}; }
};

/// h_t = cell(x_t W + b, h_{t-1} U + c) over a sequence. Weights begin uniformly, whatever the scheme: ones
/// as small as a transformer's would let no state last.
struct RecurrentLayer : Module {
  RecurrentLayer(RecurrentCell which, std::int64_t in, std::int64_t width, bool with_bias, const Init& init);
  RecurrentCell kind;
  Linear input, hidden;  ///< [in, gates * width] and [width, gates * width]

  std::int64_t width() const { return hidden.weight.size(0); }
  /// Zeros.
  RecurrentState empty_state(std::int64_t batch) const;

  /// The states [batch, time, width], and what is remembered after the last step.
  struct Result {
    Tensor states;
    RecurrentState last;
  };
  /// x [batch, time, in]; steps at which `real` (bool [batch, time], or none) is false change nothing.
  Result forward(const Tensor& x, const RecurrentState& state, const NDArray& real = {}) const;
  void list(Parts& parts) override;
};

/// The summary of a row's states, sum over t of a_t h_t with a_t = softmax over t of u h_t, where `real`
/// (bool [batch, time], or none: everywhere): states [batch, time, width], u [width] -> [batch, width] (S28).
Tensor attention_summary(const Tensor& states, const Tensor& u, const NDArray& real = {});

}  // namespace needle
