// Faults of other engines (BR-031 to BR-041): what is right for their inputs.
#include <pthread.h>

#include <cmath>

#include "needle/ops/ops.h"
#include "tests/agree.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

class AutogradBugs : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(, AutogradBugs, testing::ValuesIn(all_devices()), device_name);

TEST_P(AutogradBugs, BR031_GradientsOfBroadcastOperandsHaveTheirShapes) {
  const Tensor a = leaf({1, 2, 3}, {3, 1}), b = leaf({1, 10, 100, 1000}, {1, 4}), c = leaf({0.5}, {});
  sum(a * b + c).backward();
  EXPECT_TRUE(same(a.grad(), NDArray::full({3, 1}, 1111, exact(), device())));
  EXPECT_TRUE(same(b.grad(), NDArray::full({1, 4}, 6, exact(), device())));
  EXPECT_TRUE(same(c.grad(), NDArray::full({}, 12, exact(), device())));
  const Tensor x(NDArray::arange(6, exact(), device()).reshape({2, 1, 3}), true),
      y = leaf({0, 1, 2, 3}, {4, 1});
  sum(x * y).backward();
  EXPECT_TRUE(same(x.grad(), NDArray::full({2, 1, 3}, 6, exact(), device())));
  EXPECT_TRUE(same(y.grad(), NDArray::full({4, 1}, 15, exact(), device())));
  const Tensor z(normal({2, 3, 4}, 1), true);
  sum(mean(z, {0, 2}) * Tensor(array({1, 2, 3}))).backward();
  EXPECT_TRUE(same(z.grad(), array({0.125, 0.25, 0.375}, {3, 1}).broadcast_to({2, 3, 4})));
}

TEST_P(AutogradBugs, BR032_SharedValuesAreVisitedOnce) {
  const Tensor x = leaf({1}), a(array({1}));
  const Tensor shared = x * a;
  (x * shared + x * shared + (x * x) * a).backward();
  EXPECT_EQ(x.grad().item(), 6);

  const Tensor p = leaf({3}), q = leaf({2}), d = leaf({1});
  const Tensor e = (p + q) * d;
  e.backward({}, true);
  e.backward({}, true);
  EXPECT_EQ(p.grad().item(), 2);
  EXPECT_EQ(q.grad().item(), 2);
  EXPECT_EQ(d.grad().item(), 10);

  const Tensor start = leaf({1});
  Tensor y = start;
  for (int i = 0; i < 40; ++i) y = y + y;
  y.backward();
  EXPECT_EQ(start.grad().item(), 1099511627776.0);
}

/// BR-033's chain: a sum of n terms.
void add_in_a_chain(Device device) {
  const int n = 100000;
  const Tensor x(NDArray::zeros({}, DType::f32, device), true),
      b(NDArray::ones({}, DType::f32, device), true);
  for (const bool walked : {true, false}) {
    Tensor y = x;
    for (int i = 0; i < n; ++i) y = y + b;
    EXPECT_EQ(y.item(), n);
    if (walked) y.backward();
  }
  EXPECT_EQ(x.grad().item(), 1);
  EXPECT_EQ(b.grad().item(), n);
}

TEST_P(AutogradBugs, BR033_LongChainsRunOnASmallStack) {
  add_in_a_chain(device());
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 512 * 1024);
  pthread_t thread{};
  Device on = device();
  const auto body = [](void* argument) -> void* {
    add_in_a_chain(*static_cast<Device*>(argument));
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, body, &on), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

TEST_P(AutogradBugs, BR035_PowersAtZeroAndOfNegativeBases) {
  struct Case {
    double base, exponent, value, slope;
  };
  for (const Case& c : {Case{0, 2, 0, 0}, Case{0, 1, 0, 1}, Case{0, 0, 1, 0}, Case{0, 3, 0, 0},
                        Case{-2, 3, -8, 12}, Case{-2, 2, 4, -4}, Case{0, 0.5, 0, HUGE_VAL}}) {
    SCOPED_TRACE(testing::Message() << c.base << "^" << c.exponent);
    for (const bool recorded : {false, true}) {
      const Tensor x = leaf({c.base}), exponent(array({c.exponent}));
      const Tensor by_number = power(x, c.exponent), by_tensor = power(x, exponent);
      for (const Tensor& y : {by_number, by_tensor}) {
        EXPECT_EQ(y.item(), c.value);
        EXPECT_EQ(gradients(y, {x}, {}, recorded)[0].item(), c.slope);
      }
    }
  }
  const Tensor exponent = leaf({1, 1});
  sum(power(Tensor(array({0, 2})), exponent)).backward();
  EXPECT_TRUE(agrees(exponent.grad(), array({0, 1.3862943611198906})));
}

TEST_P(AutogradBugs, BR037_BranchesThatAreNotTakenStayOutOfTheGradient) {
  for (const bool recorded : {false, true}) {
    const Tensor a = leaf({100}, {1}, DType::f32);
    const Tensor y = where(less_equal(a, constant_like(a, 0)), exp(a), 1.0 + a);
    EXPECT_EQ(y.item(), 101);
    EXPECT_EQ(gradients(y, {a}, {}, recorded)[0].item(), 1);

    const Tensor x = leaf({1, 2, 3, 4, 0, 0}, {3, 2}), s = sum(x * x, {1});
    const Tensor norms = where(greater(s, constant_like(s, 0.25)), sqrt(s), constant_like(s, 1));
    EXPECT_NEAR(sum(norms).item(), 8.23606797749979, within(1e-12));
    EXPECT_TRUE(agrees(gradients(sum(norms), {x}, {}, recorded)[0].array(),
                       array({0.4472135954999579, 0.8944271909999159, 0.6, 0.8, 0, 0}, {3, 2})));

    const Tensor z = leaf({-1, -4});
    const Tensor root = where(greater(z, constant_like(z, 0)), sqrt(z), z);
    EXPECT_TRUE(same(root.array(), array({-1, -4})));
    EXPECT_TRUE(same(gradients(sum(root), {z}, {}, recorded)[0].array(), array({1, 1})));
  }
}

TEST_P(AutogradBugs, BR038_ValueChangedThroughAnAliasIsAnErrorAndNotAWrongGradient) {
  const Tensor a = leaf({1, 2, 3}), out = sigmoid(a);
  const Tensor loss = sum(out);
  NDArray alias = out.detach().array();
  alias.assign(NDArray::scalar(0, exact(), device()));
  EXPECT_TRUE(contains(error_of([&] { loss.backward(); }), {"sigmoid", "output", "[3]", "overwritten"}));
  // The same for a parameter that an optimizer changes between forward and backward.
  const Tensor w = leaf({1, 2}), x(array({3, 4}));
  const Tensor y = sum(w * w * x);
  NDArray parameter = w.array();
  const ParameterArrays step{parameter.mutable_view(), x.array().view(), {}, {}, {}};
  NDArray state = NDArray::zeros({kStepNumbers}, DType::f64, device());
  device()->sgd({0, false}, {&step, 1}, state.mutable_view());
  EXPECT_TRUE(contains(error_of([&] { y.backward(); }), {"multiply", "overwritten"}));
}

TEST_P(AutogradBugs, BR040_StridedInputsAndIncomingGradients) {
  std::vector<double> values;
  for (int s = 0; s < 2; ++s) {
    for (int b = 0; b < 3; ++b) {
      for (int v = 0; v < 4; ++v) values.push_back((7 * s + 3 * b + 5 * v) % 11 / 2.0);
    }
  }
  for (const DType dtype : dtypes()) {
    const Tensor logits = transpose(Tensor(array(values, {2, 3, 4}, dtype)), 0, 1);
    const NDArray labels = ids({0, 2, 1, 3, 2, 0}, {3, 2});
    EXPECT_NEAR(cross_entropy(logits, labels).item(), 2.7472206314386516, within(1e-6));
    EXPECT_TRUE(agrees(cross_entropy_rows(logits, labels).array(),
                       array({5.129808232499548, 1.0226643357538485, 0.5529667184726561, 4.0226643357538485,
                              2.702253447679352, 3.052966718472656},
                             {3, 2}),
                       1e-6));
  }
  const Tensor a = leaf({1, 2, 3, 4, 5, 6}, {2, 3}), b = leaf({1, 0, 2, 0, 1, 3}, {2, 3});
  sum(matmul(transpose(a), b)).backward();
  EXPECT_TRUE(same(a.grad(), array({3, 3, 3, 4, 4, 4}, {2, 3})));
  EXPECT_TRUE(same(b.grad(), array({6, 6, 6, 15, 15, 15}, {2, 3})));
}

TEST_P(AutogradBugs, BR041_RepeatedIdsAddUp) {
  const Tensor x = leaf({0.1}, {1, 1});
  gather_rows(x, ids({0, 0}, {2})).backward(array({0.2, 0.3}, {2, 1}));
  EXPECT_EQ(x.grad().item(), 0.5);
  const Tensor along = leaf({0.1});
  gather(along, 0, ids({0, 0}, {2})).backward(array({0.2, 0.3}));
  EXPECT_EQ(along.grad().item(), 0.5);
  const Tensor table(normal({4, 2}, 1), true);
  sum(gather_rows(table, ids({1, 1, 3}, {1, 3}))).backward();
  EXPECT_TRUE(same(table.grad(), array({0, 0, 2, 2, 0, 0, 1, 1}, {4, 2})));

  const NDArray seed = normal({5000, 8}, 2, DType::f32);
  std::vector<std::int64_t> many;
  for (std::int64_t i = 0; i < 5000; ++i) many.push_back(i * i % 3);
  NDArray first;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const Tensor rows(normal({3, 8}, 3, DType::f32), true);
    gather_rows(rows, ids(many, {5000})).backward(seed);
    if (repeat == 0) first = rows.grad();
    EXPECT_TRUE(same(rows.grad(), first));
  }
}

}  // namespace
}  // namespace needle
