#include "needle/nn/recurrent.h"

#include "needle/ops/attention.h"

namespace needle {

namespace {

Init uniform(const Init& init) { return {init.random, init.device, init.dtype, Initialisation::uniform}; }

}  // namespace

RecurrentLayer::RecurrentLayer(RecurrentCell which, std::int64_t in, std::int64_t width, bool with_bias,
                               const Init& init)
    : kind(which),
      input(in, gates_of(which) * width, with_bias, uniform(init)),
      hidden(width, gates_of(which) * width, with_bias, uniform(init)) {
  hidden.keeps_float = true;
}

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

Tensor attention_summary(const Tensor& states, const Tensor& u, const NDArray& real) {
  require(states.rank() == 3 && u.shape() == Shape{states.size(2)},
          "attention_summary: wants states [batch, time, width] and u [width], got ", states.shape(), " and ",
          u.shape());
  const std::int64_t batch = states.size(0), width = states.size(2);
  const Tensor query = broadcast_to(reshape(u, {1, 1, 1, width}), {batch, 1, 1, width}),
               keys = unsqueeze(states, 1);
  AttentionOptions options;
  options.scale = 1;
  options.key_mask = real;
  return reshape(attention(query, keys, keys, options), {batch, width});
}

void RecurrentLayer::list(Parts& parts) {
  parts("input", input);
  parts("hidden", hidden);
}

}  // namespace needle
