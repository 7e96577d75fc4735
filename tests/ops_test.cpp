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
  NDArrays inputs(DType dtype = DType::f64) const { return inputs_of(op(), std::get<0>(GetParam()), dtype); }
};

TEST_P(OpTable, GradientsAgreeWithFiniteDifferences) {
  for (const int order : {1, 2}) {
    const GradientCheckRow row = check_gradient(op().name, op().function, inputs(), order);
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
  for (const DType dtype : {DType::f64, DType::f32}) {
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
  for (const NDArray& x : inputs()) {
    broadcast.push_back(x.rank() == 0 ? x : x[0].broadcast_to(x.shape()));
    compact.push_back(broadcast.back().copy());
  }
  expect_agreement(run(op().function, broadcast), run(op().function, compact), 1e-14);
}

TEST_P(OpTable, Float32AgreesWithFloat64) {
  const NDArrays single = inputs(DType::f32);
  NDArrays widened;
  for (const NDArray& x : single) widened.push_back(x.cast(DType::f64));
  expect_agreement(run(op().function, single), run(op().function, widened), 1e-5);
}

TEST_P(OpTable, SixteenBitTypesAgreeWithFloat64OrAreRefused) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const NDArrays narrow = inputs(dtype);
    NDArrays widened;
    for (const NDArray& x : narrow) widened.push_back(x.cast(DType::f64));
    Outcome ours;
    const std::string refusal = error_of([&] { ours = run(op().function, narrow); });
    if (ours.output.defined())
      expect_agreement(ours, run(op().function, widened), bound_of(dtype));
    else
      EXPECT_TRUE(contains(refusal, {"wants", "f32", std::string(name_of(dtype))}));
  }
}

TEST_P(OpTable, FusedOpEqualsItsDefinition) {
  if (!op().definition) return;
  for (const DType dtype : {DType::f64, DType::f32}) {
    expect_agreement(run(op().function, inputs(dtype)), run(op().definition, inputs(dtype)), bound_of(dtype));
  }
}

INSTANTIATE_TEST_SUITE_P(, OpTable,
                         testing::Combine(testing::ValuesIn(all_devices()), testing::ValuesIn(op_table())),
                         [](const auto& instance) {
                           return test_name(std::get<1>(instance.param).name + "_" +
                                            std::get<0>(instance.param).name());
                         });

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
