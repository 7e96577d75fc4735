// An op of one's own, outside the library: softsign, x / (1 + |x|), with its gradient and a check of both.
#include <iostream>

#include "needle/inspect/gradient_check.h"
#include "needle/ops/ops.h"

using namespace needle;

/// `compute` works on arrays, `gradient` on tensors: being made of ops, it can be differentiated again.
struct Softsign final : Op {
  const char* name() const override { return "softsign"; }

  NDArrays compute(const NDArrays& inputs) override {
    const NDArray one = NDArray::scalar(1, inputs[0].dtype(), inputs[0].device());
    return {binary(Divide{}, inputs[0], binary(Add{}, one, unary(Abs{}, inputs[0])))};
  }

  /// The derivative is 1 / (1 + |x|)^2.
  Tensors gradient(const Tensors& out_grads, const Saved& saved, const Needs&) override {
    return {out_grads[0] / power(1.0 + abs(saved.input(0)), 2)};
  }

  /// The gradient reads input 0 and no output.
  Reads reads() const override { return {0b1, 0b0}; }
};

Tensor softsign(const Tensor& x) { return apply_op<Softsign>({x}); }

int main() {
  const Tensor x(NDArray::from(std::vector<float>{-3, -0.5, 0.25, 1}, {4}), true);
  const Tensor y = softsign(x);
  sum(y).backward();
  std::cout << "x        " << x.array() << "\nsoftsign " << y.array() << "\ngradient " << x.grad() << '\n';

  bool passed = true;
  for (const int order : {1, 2}) {
    const GradientCheckRow row = check_gradient(
        "softsign", [](const Tensors& inputs) { return softsign(inputs[0]); }, {x.array().cast(DType::f64)},
        order);
    std::cout << "derivative " << order << ": relative error " << row.error
              << (row.passed ? ", pass\n" : ", FAIL\n");
    passed = passed && row.passed;
  }
  return passed ? 0 : 1;
}
