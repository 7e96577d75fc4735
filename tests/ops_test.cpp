// Every op of op_table.h: gradients of first and second order against finite differences, strided inputs
// against compact ones, float32 against float64, and fused ops against their definitions.
#include "needle/ops/ops.h"

#include <gtest/gtest.h>

#include "needle/inspect/op_table.h"
#include "tests/agree.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

/// The value of a function and the gradients of its inputs.
struct Outcome {
  NDArray output;
  NDArrays gradients;
};

/// Runs `function` and, under a fixed random seed gradient, its backward pass.
Outcome run(const TensorFunction& function, const NDArrays& arrays) {
  Tensors inputs;
  for (const NDArray& array : arrays) inputs.emplace_back(array, true);
  const Tensor y = function(inputs);
  Generator random(5);
  const NDArray seed =
      NDArray::random({Distribution::Kind::normal, 0, 1}, y.shape(), random, DType::f32, y.device());
  y.backward(seed.cast(y.dtype()));
  Outcome outcome{y.array(), {}};
  for (const Tensor& input : inputs) outcome.gradients.push_back(input.grad());
  return outcome;
}

void expect_agreement(const Outcome& ours, const Outcome& right, double bound) {
  EXPECT_TRUE(agrees(ours.output, right.output, bound, 1));
  ASSERT_EQ(ours.gradients.size(), right.gradients.size());
  for (std::size_t i = 0; i < ours.gradients.size(); ++i) {
    // The seed's largest element is above 1.
    EXPECT_TRUE(agrees(ours.gradients[i], right.gradients[i], bound, 1)) << "input " << i;
  }
}

class OpTable : public testing::TestWithParam<std::tuple<Device, OpCase>> {
 protected:
  const OpCase& op() const { return std::get<1>(GetParam()); }
  Device device() const { return std::get<0>(GetParam()); }
  NDArrays inputs(DType dtype) const { return inputs_of(op(), device(), dtype); }
  /// The same numbers in the CPU's float64.
  static NDArrays widened(const NDArrays& arrays) {
    NDArrays result;
    for (const NDArray& x : arrays) result.push_back(x.to(cpu()).cast(DType::f64));
    return result;
  }
};

/// What agrees with float64 to any order is checked where there is float64.
class OpTableOnTheCpu : public OpTable {};

TEST_P(OpTableOnTheCpu, GradientsAgreeWithFiniteDifferences) {
  for (const int order : {1, 2}) {
    const GradientCheckRow row = check_gradient(op().name, op().function, inputs(DType::f64), order);
    EXPECT_TRUE(row.passed) << "order " << order << ": error " << row.error << ", difference "
                            << row.difference;
  }
}

TEST_P(OpTable, StridedInputsEqualCompactOnes) {
  using Layout = NDArray (*)(const NDArray&);
  const std::pair<const char*, Layout> layouts[] = {
      {"transposed",
       [](const NDArray& x) { return x.rank() < 2 ? x : x.transpose(0, -1).copy().transpose(0, -1); }},
      {"every other element of a larger array",
       [](const NDArray& x) {
         if (x.rank() == 0) return x;
         Shape twice = x.shape();
         twice[x.rank() - 1] *= 2;
         NDArray place = NDArray::zeros(twice, x.dtype(), x.device()).slice(-1, 1, twice.at(-1), 2);
         place.assign(x);
         return place;
       }},
      {"backwards", [](const NDArray& x) { return x.rank() == 0 ? x : x.flip({0}).copy().flip({0}); }},
  };
  for (const DType dtype : computing_dtypes(device())) {
    const NDArrays compact = inputs(dtype);
    const Outcome right = run(op().function, compact);
    for (const auto& [name, layout] : layouts) {
      SCOPED_TRACE(name);
      NDArrays strided;
      for (const NDArray& x : compact) strided.push_back(layout(x));
      expect_agreement(run(op().function, strided), right, dtype == DType::f64 ? 1e-14 : 2e-6);
    }
  }
}

TEST_P(OpTable, BroadcastInputsEqualCompactOnes) {
  NDArrays broadcast, compact;
  for (const NDArray& x : inputs(exact_dtype(device()))) {
    broadcast.push_back(x.rank() == 0 ? x : x[0].broadcast_to(x.shape()));
    compact.push_back(broadcast.back().copy());
  }
  expect_agreement(run(op().function, broadcast), run(op().function, compact), bound_on(device(), 1e-14));
}

TEST_P(OpTable, Float32AgreesWithFloat64) {
  const NDArrays single = inputs(DType::f32);
  expect_agreement(run(op().function, single), run(op().function, widened(single)), 1e-5);
}

// Kernels that make several gradients leave out those that nobody wants, and add to those that are there.
TEST_P(OpTable, EachGradientAloneIsWhatItIsAmongAllAndAddsUp) {
  const NDArrays arrays = inputs(exact_dtype(device()));
  const Outcome all = run(op().function, arrays);
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    Tensors leaves;
    for (std::size_t k = 0; k < arrays.size(); ++k) leaves.emplace_back(arrays[k], k == i);
    for (const double times : {1.0, 2.0}) {
      const Tensor y = op().function(leaves);
      if (!y.requires_grad()) break;
      Generator random(5);
      const NDArray seed =
          NDArray::random({Distribution::Kind::normal, 0, 1}, y.shape(), random, DType::f32, y.device());
      y.backward(seed.cast(y.dtype()));
      EXPECT_TRUE(agrees(leaves[i].grad(), unary(MultiplyScalar{times}, all.gradients[i]),
                         bound_on(device(), 1e-14), 1))
          << "input " << i << ", " << times;
    }
  }
}

TEST_P(OpTable, SixteenBitTypesAgreeWithFloat64OrAreRefused) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const NDArrays narrow = inputs(dtype);
    Outcome ours;
    const std::string refusal = error_of([&] { ours = run(op().function, narrow); });
    if (ours.output.defined())
      expect_agreement(ours, run(op().function, widened(narrow)), bound_of(dtype));
    else
      EXPECT_TRUE(contains(refusal, {"wants", "f32", std::string(name_of(dtype))}));
  }
}

TEST_P(OpTable, FusedOpEqualsItsDefinition) {
  if (!op().definition) return;
  for (const DType dtype : computing_dtypes(device())) {
    expect_agreement(run(op().function, inputs(dtype)), run(op().definition, inputs(dtype)), bound_of(dtype));
  }
}

/// The gradients of a function's gradients: of <gradient, direction> for fixed directions.
NDArrays second_gradients(const TensorFunction& function, const NDArrays& arrays) {
  Generator random(6);
  Tensors inputs;
  for (const NDArray& array : arrays) inputs.emplace_back(array, true);
  const auto direction = [&](const Tensor& like) {
    const NDArray numbers =
        NDArray::random({Distribution::Kind::normal, 0, 1}, like.shape(), random, DType::f32, like.device());
    return Tensor(numbers.cast(like.dtype()));
  };
  const Tensor y = function(inputs);
  Tensor total;
  for (const Tensor& slope : gradients(y, inputs, direction(y), true)) {
    const Tensor along = sum(slope * direction(slope));
    total = total.defined() ? total + along : along;
  }
  NDArrays result;
  for (const Tensor& x : total.requires_grad() ? gradients(total, inputs) : Tensors{})
    result.push_back(x.array());
  return result;
}

TEST_P(OpTable, SecondOrderGradientsAgreeWithFloat64) {
  const NDArrays single = inputs(DType::f32);
  const NDArrays ours = second_gradients(op().function, single),
                 right = second_gradients(op().function, widened(single));
  ASSERT_EQ(ours.size(), right.size());
  for (std::size_t i = 0; i < ours.size(); ++i)
    EXPECT_TRUE(agrees(ours[i], right[i], 1e-5, std::max(1.0, largest_magnitude(right[i])))) << "input " << i;
}

const auto kNameOfCase = [](const auto& instance) {
  return test_name(std::get<1>(instance.param).name + "_" + std::get<0>(instance.param).name());
};
INSTANTIATE_TEST_SUITE_P(, OpTable,
                         testing::Combine(testing::ValuesIn(all_devices()), testing::ValuesIn(op_table())),
                         kNameOfCase);
INSTANTIATE_TEST_SUITE_P(, OpTableOnTheCpu,
                         testing::Combine(testing::Values(cpu()), testing::ValuesIn(op_table())),
                         kNameOfCase);

TEST(GradientCheck, CatchesAWrongGradient) {
  struct WrongOp final : Op {
    const char* name() const override { return "wrong"; }
    Reads reads() const override { return {1, 0}; }
    NDArrays compute(const NDArrays& inputs) override { return {unary(Exp{}, inputs[0])}; }
    Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
      return {g[0] * exp(saved.input(0)) * (1 + 2e-6)};
    }
  };
  const NDArray x = NDArray::arange(4, DType::f64, cpu(), -1, 0.7);
  const GradientCheckRow row =
      check_gradient("wrong", [](const Tensors& in) { return apply_op<WrongOp>({in[0]}); }, {x});
  EXPECT_FALSE(row.passed);
  EXPECT_GT(row.error, 1e-6);
  EXPECT_LT(row.error, 1e-5);
}

TEST(GradientCheck, CatchesAFastGradientThatDiffersFromTheDefinition) {
  struct SlowAndFastOp final : FusedOp {
    const char* name() const override { return "slow_and_fast"; }
    NDArrays compute(const NDArrays& inputs) override { return {unary(Tanh{}, inputs[0])}; }
    Tensors definition(const Tensors& inputs) const override { return {tanh(inputs[0])}; }
    void add_gradient(NDArrays g, const Saved& saved, GradientSums& into) override {
      into.add(0, binary(TanhGradient{}, unary(Tanh{}, unary(AddScalar{1e-8}, saved.input_array(0))), g[0]));
    }
  };
  const NDArray x = NDArray::arange(4, DType::f64, cpu(), -1, 0.7);
  const GradientCheckRow row = check_gradient(
      "slow_and_fast", [](const Tensors& in) { return apply_op<SlowAndFastOp>({in[0]}); }, {x});
  EXPECT_FALSE(row.passed);
  EXPECT_LT(row.error, 1e-6);
  EXPECT_GT(row.difference, 1e-9);
}

TEST(GradientCheck, GoesToAnyOrder) {
  const NDArray x = NDArray::arange(3, DType::f64, cpu(), -1, 0.9);
  const TensorFunction function = [](const Tensors& in) { return tanh(in[0]) * power(in[0], 4); };
  for (const int order : {1, 2, 3, 4})
    EXPECT_TRUE(check_gradient("product", function, {x}, order).passed) << order;
}

}  // namespace
}  // namespace needle
