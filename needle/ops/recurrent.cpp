#include "needle/ops/recurrent.h"

#include "needle/counters.h"
#include "needle/ops/elementwise.h"
#include "needle/ops/matmul.h"
#include "needle/ops/shape.h"

namespace needle {

namespace {

/// State and cell of all rows.
struct Step {
  Tensor state, cell;
};

/// One step from the sums of each gate, [batch, width] each.
Step step_of(RecurrentCell kind, const Tensors& input, const Tensors& hidden, const Step& before) {
  switch (kind) {
    case RecurrentCell::tanh:
      return {tanh(input[0] + hidden[0]), {}};
    case RecurrentCell::relu:
      return {relu(input[0] + hidden[0]), {}};
    case RecurrentCell::gru: {
      const Tensor r = sigmoid(input[0] + hidden[0]), z = sigmoid(input[1] + hidden[1]);
      const Tensor n = tanh(input[2] + r * hidden[2]);
      return {(1.0 - z) * n + z * before.state, {}};
    }
    case RecurrentCell::lstm:
      break;
  }
  const Tensor i = sigmoid(input[0] + hidden[0]), f = sigmoid(input[1] + hidden[1]);
  const Tensor g = tanh(input[2] + hidden[2]), o = sigmoid(input[3] + hidden[3]);
  const Tensor cell = f * before.cell + i * g;
  return {o * tanh(cell), cell};
}

}  // namespace

RecurrentStates recurrence_definition(RecurrentCell kind, const Tensor& input, const Tensor& weight,
                                      const Tensor& bias, const Tensor& state, const Tensor& cell,
                                      const NDArray& real) {
  const std::vector<std::int64_t> widths(static_cast<std::size_t>(gates_of(kind)), weight.size(0));
  Step now{state, cell};
  Tensors states;
  for (std::int64_t t = 0; t < input.size(1); ++t) {
    const Tensors sums = split(squeeze(slice(input, 1, t, t + 1), 1), widths, -1);
    const Step next = step_of(kind, sums, split(linear(now.state, weight, bias), widths, -1), now);
    const auto kept_or = [&](const Tensor& before, const Tensor& after) {
      return real.defined() && after.defined() ? where(Tensor(real.slice(1, t, t + 1)), after, before)
                                               : after;
    };
    now = {kept_or(now.state, next.state), kept_or(now.cell, next.cell)};
    states.push_back(now.state);
  }
  return {stack(states, 1), now.cell};
}

namespace {

/// Inputs: input, weight, state, then the cell of an LSTM, then the bias if there is one.
struct RecurrenceOp final : FusedOp {
  RecurrenceOp(RecurrentCell cell, NDArray which, bool biased)
      : kind(cell), real(std::move(which)), has_bias(biased) {}
  RecurrentCell kind;
  NDArray real;
  bool has_bias;
  NDArray remembered;  // of each step, for the gradient

  bool has_cell() const { return kind == RecurrentCell::lstm; }
  std::size_t bias_index() const { return has_cell() ? 4 : 3; }

  const char* name() const override { return "recurrence"; }
  Reads reads() const override { return {Reads::kAll, 1}; }
  NDArrays kept() const override { return {remembered, real}; }

  Tensors definition(const Tensors& inputs) const override {
    const RecurrentStates result =
        recurrence_definition(kind, inputs[0], inputs[1], has_bias ? inputs[bias_index()] : Tensor(),
                              inputs[2], has_cell() ? inputs[3] : Tensor(), real);
    return has_cell() ? Tensors{result.states, result.last_cell} : Tensors{result.states};
  }

  NDArrays compute(const NDArrays& given) override {
    const NDArrays inputs = compacted(given);
    const NDArray &input = inputs[0], &state = inputs[2];
    const std::int64_t batch = input.size(0), time = input.size(1), width = state.size(1),
                       kinds = kept_of(kind);
    const NDArray states = NDArray::empty({batch, time, width}, input.dtype(), input.device());
    remembered = NDArray::empty({batch, time, kinds, width}, input.dtype(), input.device());
    states.device()->recurrence(kind, arrays(inputs, states));
    if (!has_cell()) return {states};
    // Without steps the cell is what it was.
    const NDArray last =
        time == 0 ? inputs[3] : remembered.slice(1, time - 1, time).slice(2, kinds - 1, kinds);
    return {states, last.reshape({batch, width}).copy()};
  }

  void add_gradient(NDArrays g, const Saved& saved, GradientSums& into) override {
    NDArrays inputs;
    for (int i = 0; i < saved.input_count(); ++i) inputs.push_back(saved.input_array(i));
    inputs = compacted(inputs);
    const NDArray &input = inputs[0], &weight = inputs[1], &state = inputs[2], states = saved.output_array(0);
    const auto like = [](const NDArray& x) { return NDArray::empty(x.shape(), x.dtype(), x.device()); };
    const NDArray dinput = like(input), dstate = like(state),
                  dcell = has_cell() ? like(inputs[3]) : NDArray();
    const NDArray dhidden = kind == RecurrentCell::gru ? like(input) : dinput;
    const NDArray dstates = g[0].compact(), dlast = has_cell() ? g[1].compact() : NDArray();
    states.device()->recurrence_gradient(kind, arrays(inputs, states),
                                         {dstates.view(), dlast.optional_view(), dinput.view(),
                                          dhidden.view(), dstate.view(), dcell.optional_view()});
    const std::int64_t steps = states.size(0) * states.size(1), width = weight.size(0),
                       gates = weight.size(1);
    const NDArray rows = dhidden.reshape({steps, gates});
    if (into.needs(1)) {
      bool first = false;
      NDArray& sum = into.sum(1, first);
      matmul_into(states_before(state, states).reshape({steps, width}).transpose(), rows, sum, !first);
    }
    const int bias = static_cast<int>(bias_index());
    if (has_bias && into.needs(bias)) into.add(bias, reduce(Sum{}, rows, {0}));
    if (into.needs(2)) into.add(2, dstate);
    if (has_cell() && into.needs(3)) into.add(3, dcell);
    if (into.needs(0)) into.add(0, dinput);
  }

  /// Of the products h U.
  double operations(std::span<const NDArray> inputs, std::span<const NDArray>) const override {
    return 2.0 * static_cast<double>(inputs[0].count()) * static_cast<double>(inputs[1].size(0));
  }
  double gradient_operations(double forward, const Needs&) const override { return 2 * forward; }

 private:
  static NDArrays compacted(const NDArrays& inputs) {
    NDArrays result;
    for (const NDArray& input : inputs) result.push_back(input.compact());
    return result;
  }

  RecurrentArrays arrays(const NDArrays& inputs, const NDArray& states) const {
    return {inputs[0].view(),
            inputs[1].view(),
            has_bias ? inputs[bias_index()].view() : View{},
            inputs[2].view(),
            has_cell() ? inputs[3].view() : View{},
            real.optional_view(),
            states.view(),
            remembered.view()};
  }

  /// The state before each step, [batch, time, width].
  static NDArray states_before(const NDArray& state, const NDArray& states) {
    const NDArray before = NDArray::empty(states.shape(), states.dtype(), states.device());
    const std::int64_t time = states.size(1);
    if (time == 0) return before;
    states.device()->copy(state.unsqueeze(1).view(), before.slice(1, 0, 1).view());
    states.device()->copy(states.slice(1, 0, time - 1).view(), before.slice(1, 1, time).view());
    return before;
  }
};

}  // namespace

RecurrentStates recurrence(RecurrentCell kind, const Tensor& input, const Tensor& weight, const Tensor& bias,
                           const Tensor& state, const Tensor& cell, const NDArray& real) {
  require(
      input.rank() == 3 && weight.rank() == 2 && state.rank() == 2,
      "recurrence: wants input [batch, time, gates * width], weight [width, gates * width] and state [batch, "
      "width], got ",
      input.shape(), ", ", weight.shape(), " and ", state.shape());
  const std::int64_t batch = input.size(0), width = weight.size(0), gates = gates_of(kind) * width;
  require(weight.size(1) == gates && input.size(2) == gates && state.shape() == Shape{batch, width},
          "recurrence: a width of ", width, " with ", gates_of(kind), " gates wants an input [", batch,
          ", time, ", gates, "], a weight [", width, ", ", gates, "] and a state [", batch, ", ", width,
          "], got ", input.shape(), ", ", weight.shape(), " and ", state.shape());
  const bool has_cell = kind == RecurrentCell::lstm;
  require(cell.defined() == has_cell, "recurrence: a cell is wanted by an LSTM, and by no other");
  require(!has_cell || cell.shape() == state.shape(),
          "recurrence: the cell must have the shape of the state, ", state.shape(), ", got ",
          has_cell ? cell.shape() : Shape{});
  require(!bias.defined() || bias.shape() == Shape{gates}, "recurrence: wants a bias [", gates, "], got ",
          bias.defined() ? bias.shape() : Shape{});
  require(!real.defined() || (real.dtype() == DType::boolean && real.shape() == Shape{batch, input.size(1)}),
          "recurrence: wants a bool mask [batch, time] = [", batch, ", ", input.size(1), "]");
  if (real.defined()) require_same_device("recurrence", input.array(), real);
  Tensors inputs{input, weight, state};
  if (has_cell) inputs.push_back(cell);
  if (bias.defined()) inputs.push_back(bias);
  for (const Tensor& other : inputs) require_same_dtype("recurrence", input.array(), other.array());
  const NDArray mask = real.defined() ? real.compact() : real;
  const Tensors outputs = apply_op(std::make_unique<RecurrenceOp>(kind, mask, bias.defined()), inputs);
  return {outputs[0], has_cell ? outputs[1] : Tensor()};
}

}  // namespace needle
