// Recurrent layers and causal convolution against the values of tests/reference, and what holds for any of
// them.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "needle/nn/convolution.h"
#include "needle/nn/recurrent.h"
#include "tests/agree.h"
#include "tests/on_devices.h"
#include "tests/reference_file.h"

namespace needle {
namespace {

class SequenceOps : public OnDevice {
 protected:
  Init init(Generator& random, DType dtype) const {
    return {random, device(), dtype, Initialisation::uniform};
  }
  Init init(Generator& random) const { return init(random, exact()); }
};
INSTANTIATE_TEST_SUITE_P(All, SequenceOps, testing::ValuesIn(all_devices()), device_name);

constexpr RecurrentCell kCells[] = {RecurrentCell::tanh, RecurrentCell::relu, RecurrentCell::gru,
                                    RecurrentCell::lstm};

TEST_P(SequenceOps, S28_RecurrentLayersAgreeWithTheReference) {
  const std::pair<const char*, RecurrentCell> files[] = {{"rnn_tanh", RecurrentCell::tanh},
                                                         {"rnn_relu", RecurrentCell::relu},
                                                         {"gru", RecurrentCell::gru},
                                                         {"lstm", RecurrentCell::lstm}};
  for (const auto& [name, kind] : files) {
    for (const DType dtype : dtypes()) {
      SCOPED_TRACE(name);
      const double bound = dtype == DType::f64 ? 1e-6 : 1e-5;  // the file's numbers are float32
      const ReferenceFile file(std::string("recurrent_") + name, device());
      const bool has_cell = kind == RecurrentCell::lstm;
      Generator random(1);
      std::vector<RecurrentLayer> layers;
      layers.emplace_back(kind, 5, 4, true, init(random, dtype));
      layers.emplace_back(kind, 4, 4, true, init(random, dtype));
      const auto leaf = [&](const std::string& part) { return Tensor(file.array(part, dtype), true); };
      const Tensor x = leaf("x"), first = leaf("h0"), cells = has_cell ? leaf("c0") : Tensor();
      Tensor y = x;
      for (std::size_t i = 0; i < 2; ++i) {
        for (Parameter& parameter : layers[i].parameters())
          parameter.tensor.set_array(file.array("layers." + std::to_string(i) + "." + parameter.name, dtype));
        const auto row = static_cast<std::int64_t>(i);
        const auto of_layer = [&](const Tensor& all) { return squeeze(slice(all, 0, row, row + 1), 0); };
        const auto [states, last] =
            layers[i].forward(y, {of_layer(first), has_cell ? of_layer(cells) : Tensor()});
        EXPECT_TRUE(agrees(last.hidden.array(), file.stored("hT")[row], bound));
        if (has_cell) {
          EXPECT_TRUE(agrees(last.cell.array(), file.stored("cT")[row], bound));
        }
        y = states;
      }
      EXPECT_TRUE(agrees(y.array(), file.stored("out"), bound));
      const NDArray incoming = file.array("dout", dtype);
      y.backward(incoming);
      const auto expect_gradient = [&](const Tensor& tensor, const std::string& part) {
        EXPECT_TRUE(agrees(tensor.grad(), file.stored("grad." + part), bound, largest_magnitude(incoming)))
            << part;
      };
      expect_gradient(x, "x");
      expect_gradient(first, "h0");
      if (has_cell) expect_gradient(cells, "c0");
      for (std::size_t i = 0; i < 2; ++i) {
        for (const Parameter& parameter : layers[i].parameters())
          expect_gradient(parameter.tensor, "layers." + std::to_string(i) + "." + parameter.name);
      }
    }
  }
}

TEST_P(SequenceOps, S29_CausalConvolutionsAgreeWithTheReference) {
  for (const char* name : {"k1_d1", "k2_d1", "k2_d4", "k3_d1", "k3_d2", "k4_d3"}) {
    for (const DType dtype : dtypes()) {
      SCOPED_TRACE(name);
      const double bound = dtype == DType::f64 ? 1e-6 : 1e-5;
      const ReferenceFile file(std::string("causal_conv_") + name, device());
      const std::int64_t dilation = file.metadata("case").at("dilation");
      const Tensor x(file.array("x", dtype), true), weight(file.array("weight", dtype), true),
          bias(file.array("bias", dtype), true);
      const Tensor y = causal_convolution(x, weight, bias, dilation);
      EXPECT_TRUE(agrees(y.array(), file.stored("out"), bound));
      const NDArray incoming = file.array("dout", dtype);
      y.backward(incoming);
      const double size = largest_magnitude(incoming);
      EXPECT_TRUE(agrees(x.grad(), file.stored("grad.x"), bound, size));
      EXPECT_TRUE(agrees(weight.grad(), file.stored("grad.weight"), bound, size));
      EXPECT_TRUE(agrees(bias.grad(), file.stored("grad.bias"), bound, size));
    }
  }
}

TEST_P(SequenceOps, BR043_PaddingIsAllBeforeTheStart) {
  const auto convolve = [&](const std::vector<double>& x, const std::vector<double>& newest_last,
                            std::int64_t dilation) {
    const std::vector<double> taps(newest_last.rbegin(), newest_last.rend());
    const std::int64_t time = std::ssize(x), kernel = std::ssize(taps);
    return causal_convolution(Tensor(array(x, {1, time, 1})), Tensor(array(taps, {kernel, 1, 1})), {},
                              dilation)
        .array()
        .to_vector<double>();
  };
  EXPECT_EQ(convolve({1, 2, 3, 4, 5}, {1, 10, 100}, 2), (std::vector<double>{100, 200, 310, 420, 531}));
  EXPECT_EQ(convolve({1, 2, 3, 4, 5, 6}, {1, 10}, 4), (std::vector<double>{10, 20, 30, 40, 51, 62}));
  EXPECT_EQ(convolve({1, 2, 3, 4, 9}, {1, 10, 100}, 2), (std::vector<double>{100, 200, 310, 420, 931}));
}

TEST_P(SequenceOps, S28_TheAttentionSummaryAgreesWithTheReference) {
  for (const DType dtype : dtypes()) {
    const ReferenceFile file("attention_pooling", device());
    const double bound = dtype == DType::f64 ? 1e-6 : 1e-5;  // the file's numbers are float32
    const Tensor states(file.array("states", dtype), true), u(file.array("u", dtype), true);
    const Tensor summary = attention_summary(states, u, file.stored("real"));
    EXPECT_TRUE(agrees(summary.array(), file.stored("out"), bound));
    const NDArray incoming = file.array("dout", dtype);
    summary.backward(incoming);
    const double scale = reduce(Max{}, unary(Abs{}, incoming)).item();
    EXPECT_TRUE(agrees(states.grad(), file.stored("grad.states"), bound, scale));
    EXPECT_TRUE(agrees(u.grad(), file.stored("grad.u"), bound, scale));
  }
  EXPECT_TRUE(contains(error_of([&] {
                         attention_summary(Tensor(array({1, 2}, {1, 1, 2})), Tensor(array({1})));
                       }),
                       {"attention_summary", "[1, 1, 2]", "[1]"}));
}

TEST_P(SequenceOps, BR044_AGruResetsTheProductAndMixesByTheUpdateGate) {
  const auto transposed = [&](const std::vector<double>& rows, std::int64_t columns) {
    return Tensor(array(rows, {6, columns}).transpose().compact());
  };
  const Tensor x(array({1}, {1, 1, 1})), state(array({0.5, -0.25}, {1, 2}));
  const Tensor input = linear(x, transposed({0.5, 0.2, -0.3, 0.1, 0.8, -0.4}, 1),
                              Tensor(array({0.1, -0.1, 0.0, 0.2, 0.05, -0.05})));
  const Tensor next =
      recurrence(RecurrentCell::gru, input,
                 transposed({0.7, -0.2, 0.1, 0.3, 0.2, 0.4, -0.5, 0.1, -0.6, 0.9, 0.3, 0.5}, 2),
                 Tensor(array({0.0, 0.1, 0.1, 0.0, 0.4, -0.3})), state)
          .states;
  EXPECT_TRUE(
      agrees(next.array(), array({0.5771208290923083, -0.39155532371851953}, {1, 1, 2}), within(1e-9)));
}

TEST_P(SequenceOps, BR047_AStateIsCarriedWithOrWithoutItsPast) {
  const Tensor w = leaf({0.5}, {1, 1}), one = Tensor(array({1}, {1, 1}));
  const auto step = [&](const Tensor& h) {  // h = w h + x, for positive sums what the ReLU cell computes
    return squeeze(recurrence(RecurrentCell::relu, Tensor(array({1}, {1, 1, 1})), w, {}, h).states, 1);
  };
  const Tensor h1 = step(one);
  EXPECT_EQ(h1.item(), 1.5);
  EXPECT_EQ(step(h1).item(), 1.75);
  EXPECT_EQ(gradients(step(h1), {w})[0].item(), 2.0);
  EXPECT_EQ(gradients(step(h1.detach()), {w})[0].item(), 1.5);
}

/// Layers of more units and rows than one block of the kernels holds, in float32 and over two groups of rows,
/// of so many rows that a block takes several, the last one fewer, and of so many weights that each step is a
/// product by itself.
TEST_P(SequenceOps, LargeRecurrencesAgreeWithTheirDefinition) {
  for (const RecurrentCell kind : kCells) {
    const auto wide = static_cast<std::int64_t>(std::sqrt((1 << 18) / gates_of(kind))) + 1;
    for (const auto [batch, time, width] :
         {std::array<std::int64_t, 3>{1, 5, 37}, {19, 5, 37}, {66, 2, 5}, {2, 3, wide}}) {
      const std::int64_t gates = gates_of(kind) * width;
      std::vector<std::uint8_t> real;
      for (std::int64_t i = 0; i < batch * time; ++i) real.push_back(i % 7 != 3);
      const auto run = [&, batch = batch, time = time, width = width](auto function, Device on, DType dtype) {
        const NDArray which = NDArray::from(real, {batch, time}, on);
        const auto numbers = [&](const Shape& shape, std::uint64_t seed) {
          return normal(shape, seed, DType::f32).to(on).cast(dtype);
        };
        const auto leaf_of = [&](const Shape& shape, std::uint64_t seed, double size) {
          return Tensor(unary(MultiplyScalar{size}, numbers(shape, seed)), true);
        };
        const Tensor input = leaf_of({batch, time, gates}, 1, 1), weight = leaf_of({width, gates}, 2, 0.2),
                     bias = leaf_of({gates}, 3, 0.2), state = leaf_of({batch, width}, 4, 1),
                     cell = kind == RecurrentCell::lstm ? leaf_of({batch, width}, 5, 1) : Tensor();
        const RecurrentStates result = function(kind, input, weight, bias, state, cell, which);
        Tensor loss = sum(result.states * Tensor(numbers({batch, time, width}, 6)));
        if (cell.defined()) loss = loss + sum(result.last_cell * result.last_cell);
        loss.backward();
        NDArrays all{result.states.array(), input.grad(), weight.grad(), bias.grad(), state.grad()};
        if (cell.defined()) all.push_back(cell.grad());
        return all;
      };
      const NDArrays right = run(recurrence_definition, cpu(), DType::f64);
      for (const DType dtype : dtypes()) {
        const NDArrays fused = run(recurrence, device(), dtype);
        for (std::size_t i = 0; i < right.size(); ++i)
          EXPECT_TRUE(agrees(fused[i], right[i], bound_of(dtype), 1)) << i;
      }
    }
  }
}

TEST_P(SequenceOps, LargeConvolutionsAgreeWithTheirDefinition) {
  // More times than one piece of the kernel has.
  const Tensor x(normal({2, 300, 5}, 1), true), weight(normal({3, 5, 4}, 2), true),
      bias(normal({4}, 3), true);
  const NDArray incoming = normal({2, 300, 4}, 4);
  for (const std::int64_t dilation : {1, 100}) {
    NDArrays results[2];
    for (const bool fused : {false, true}) {
      const Tensor y = fused ? causal_convolution(x, weight, bias, dilation)
                             : causal_convolution_definition(x, weight, bias, dilation);
      NDArrays& all = results[fused];
      all.push_back(y.array());
      for (const Tensor& gradient : gradients(y, {x, weight, bias}, Tensor(incoming)))
        all.push_back(gradient.array());
    }
    for (std::size_t i = 0; i < results[0].size(); ++i)
      EXPECT_TRUE(agrees(results[1][i], results[0][i])) << i;
  }
}

TEST_P(SequenceOps, S28_APaddedRowStaysAsItWasAtItsEnd) {
  Generator random(1);
  for (const RecurrentCell kind : kCells) {
    const RecurrentLayer layer(kind, 3, 4, true, init(random));
    const NDArray x = normal({1, 5, 3}, 2);
    const auto alone = layer.forward(Tensor(x.slice(1, 0, 3)), layer.empty_state(1));
    const auto padded = layer.forward(Tensor(x), layer.empty_state(1), mask({1, 1, 1, 0, 0}, {1, 5}));
    EXPECT_TRUE(agrees(padded.states.array().slice(1, 0, 3), alone.states.array()));
    EXPECT_TRUE(agrees(padded.last.hidden.array(), alone.last.hidden.array()));
    if (kind == RecurrentCell::lstm) {
      EXPECT_TRUE(agrees(padded.last.cell.array(), alone.last.cell.array()));
    }
  }
}

TEST_P(SequenceOps, ASequenceInPartsIsTheWholeOne) {
  Generator random(1);
  for (const RecurrentCell kind : kCells) {
    const RecurrentLayer layer(kind, 3, 4, true, init(random));
    const NDArray x = normal({2, 6, 3}, 2);
    const auto whole = layer.forward(Tensor(x), layer.empty_state(2));
    auto part = layer.forward(Tensor(x.slice(1, 0, 0)), layer.empty_state(2));
    part = layer.forward(Tensor(x.slice(1, 0, 2)), part.last);
    part = layer.forward(Tensor(x.slice(1, 2, 6)), part.last);
    EXPECT_TRUE(agrees(part.last.hidden.array(), whole.last.hidden.array()));
  }
}

TEST_P(SequenceOps, ImpossibleShapesAreErrorsThatSayWhy) {
  const auto zeros = [&](const Shape& shape) { return Tensor(NDArray::zeros(shape, exact(), device())); };
  using enum RecurrentCell;
  EXPECT_TRUE(contains(error_of([&] {
                         recurrence(gru, zeros({2, 3, 4}), zeros({4, 12}), {}, zeros({2, 4}));
                       }),
                       {"recurrence", "3 gates", "[2, 3, 4]"}));
  EXPECT_TRUE(contains(error_of([&] {
                         recurrence(lstm, zeros({2, 3, 16}), zeros({4, 16}), {}, zeros({2, 4}));
                       }),
                       {"recurrence", "cell"}));
  EXPECT_TRUE(contains(error_of([&] {
                         causal_convolution(zeros({2, 3, 4}), zeros({2, 5, 4}));
                       }),
                       {"causal_convolution", "[2, 3, 4]", "[2, 5, 4]"}));
  EXPECT_TRUE(contains(error_of([&] {
                         causal_convolution(zeros({2, 3, 4}), zeros({2, 4, 4}), {}, 0);
                       }),
                       {"dilation", "0"}));
}

}  // namespace
}  // namespace needle
