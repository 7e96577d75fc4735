#include "needle/nn/recurrent.h"

namespace needle {

namespace {

Init uniform(const Init& init) { return {init.random, init.device, init.dtype, Initialisation::uniform}; }

}  // namespace

RecurrentLayer::RecurrentLayer(RecurrentCell which, std::int64_t in, std::int64_t width, bool with_bias,
                               const Init& init)
    : kind(which),
      input(in, gates_of(which) * width, with_bias, uniform(init)),
      hidden(width, gates_of(which) * width, with_bias, uniform(init)) {}

RecurrentState RecurrentLayer::empty_state(std::int64_t batch) const {
  const NDArray& like = hidden.weight.array();
  const auto zeros = [&] { return Tensor(NDArray::zeros({batch, width()}, like.dtype(), like.device())); };
  return {zeros(), kind == RecurrentCell::lstm ? zeros() : Tensor()};
}

RecurrentLayer::Result RecurrentLayer::forward(const Tensor& x, const RecurrentState& state,
                                               const NDArray& real) const {
  const Scope scope(*this);
  const RecurrentStates result = recurrence(kind, input.forward(x, Epilogue::none, {}, hidden.weight.dtype()),
                                            hidden.weight, hidden.bias, state.hidden, state.cell, real);
  const std::int64_t time = x.size(1);
  const Tensor last = time == 0 ? state.hidden : squeeze(slice(result.states, 1, time - 1, time), 1);
  return {result.states, {last, result.last_cell}};
}

void RecurrentLayer::list(Parts& parts) {
  parts("input", input);
  parts("hidden", hidden);
}

}  // namespace needle
