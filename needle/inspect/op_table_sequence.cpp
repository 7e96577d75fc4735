// The cases of op_table.h for recurrences and causal convolutions.
#include "needle/inspect/op_table.h"
#include "needle/ops/ops.h"

namespace needle {

namespace {

/// States, and an LSTM's last cell behind them, as one tensor.
Tensor joined(const RecurrentStates& result) {
  if (!result.last_cell.defined()) return result.states;
  return concatenate({result.states, unsqueeze(result.last_cell, 1)}, 1);
}

struct RecurrentSizes {
  std::int64_t batch = 2, time = 3, width = 2;
};

/// Inputs: input, weight, state, then an LSTM's cell, then the bias.
OpCase recurrent_case(const std::string& name, RecurrentCell kind, const std::vector<std::uint8_t>& real = {},
                      bool with_bias = true, const RecurrentSizes& sizes = {}) {
  const auto [batch, time, width] = sizes;
  const std::int64_t gates = gates_of(kind) * width;
  const bool has_cell = kind == RecurrentCell::lstm;
  const auto call = [=](auto function) {
    return [=](const Tensors& x) {
      const NDArray mask = real.empty() ? NDArray() : NDArray::from(real, {batch, time}, x[0].device());
      return joined(function(kind, x[0], x[1], with_bias ? x.back() : Tensor(), x[2],
                             has_cell ? x[3] : Tensor(), mask));
    };
  };
  OpCase result{"recurrence, " + name,
                {{batch, time, gates}, {width, gates}, {batch, width}},
                call(recurrence),
                call(recurrence_definition)};
  if (has_cell) result.shapes.push_back({batch, width});
  if (with_bias) result.shapes.push_back({gates});
  return result;
}

OpCase convolution_case(const std::string& name, const Shape& x, const Shape& weight, std::int64_t dilation,
                        bool with_bias, Epilogue epilogue = Epilogue::none) {
  OpCase result{"causal_convolution, " + name,
                {x, weight},
                [=](const Tensors& t) {
                  return causal_convolution(t[0], t[1], with_bias ? t[2] : Tensor(), dilation, epilogue);
                },
                [=](const Tensors& t) {
                  return causal_convolution_definition(t[0], t[1], with_bias ? t[2] : Tensor(), dilation,
                                                       epilogue);
                }};
  if (with_bias) result.shapes.push_back({weight[2]});
  return result;
}

}  // namespace

std::vector<OpCase> sequence_cases() {
  using enum RecurrentCell;
  return {recurrent_case("tanh", tanh),
          recurrent_case("relu", relu),
          recurrent_case("gru", gru),
          recurrent_case("lstm", lstm),
          recurrent_case("tanh without bias", tanh, {}, false),
          recurrent_case("gru without bias, one row and step", gru, {}, false, {1, 1, 3}),
          recurrent_case("lstm of width 1", lstm, {}, true, {2, 2, 1}),
          recurrent_case("tanh, padded", tanh, {1, 1, 0, 0, 1, 1}),
          recurrent_case("gru, padded", gru, {0, 1, 1, 1, 0, 0}),
          recurrent_case("lstm, padded", lstm, {1, 0, 1, 0, 0, 1}),
          convolution_case("kernel 3", {2, 4, 3}, {3, 3, 2}, 1, true),
          convolution_case("kernel 2, dilation 3", {2, 5, 2}, {2, 2, 2}, 3, true),
          convolution_case("kernel 1 without bias", {2, 3, 2}, {1, 2, 3}, 1, false),
          convolution_case("longer than the sequence", {1, 2, 2}, {4, 2, 1}, 2, true),
          convolution_case("gelu", {2, 4, 3}, {2, 3, 2}, 2, true, Epilogue::gelu),
          convolution_case("one channel", {2, 4, 1}, {2, 1, 1}, 1, true),
          {"causal_convolution, relu, onto its input",
           {{2, 4, 3}, {2, 3, 3}},
           [](const Tensors& t) { return causal_convolution(t[0], t[1], {}, 1, Epilogue::relu, t[0]); },
           [](const Tensors& t) {
             return causal_convolution_definition(t[0], t[1], {}, 1, Epilogue::relu, t[0]);
           }},
          {"causal_convolution, onto a residual",
           {{1, 3, 2}, {2, 2, 3}, {3}, {1, 3, 3}},
           [](const Tensors& t) { return causal_convolution(t[0], t[1], t[2], 2, Epilogue::none, t[3]); },
           [](const Tensors& t) {
             return causal_convolution_definition(t[0], t[1], t[2], 2, Epilogue::none, t[3]);
           }}};
}

}  // namespace needle
