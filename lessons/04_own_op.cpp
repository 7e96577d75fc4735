// Lesson 4: an op of one's own, on the CPU and on CUDA.
//
// `compute` works on arrays, wherever they lie; `gradient` on tensors, in terms of other ops, so that it can
// be differentiated again. The formula for one element stands in own_op.h, the kernel that maps it in
// own_op.cu.
//
// An op needs no kernel: `unary(Abs{}, x)` and `binary(Add{}, a, b)` run the kernels that are there, on each
// device. Exercise: write `snake`, x + sin(x)^2 (Ziyin et al. 2020), with them alone: compute, what its
// gradient reads, and the gradient. (answers/04_own_op.h)
#include <chrono>
#include <cstdio>

#include "lessons/own_op.h"
#include "needle/inspect/gradient_check.h"
#include "needle/needle.h"

using namespace needle;

struct SquaredReluOp final : Op {
  const char* name() const override { return "squared_relu"; }

  NDArrays compute(const NDArrays& inputs) override {
    const NDArray x = inputs[0].compact(), y = NDArray::empty(x.shape(), x.dtype(), x.device());
    if (x.device() == cpu()) {
      dispatch_computing(name(), x.dtype(), [&](auto tag) {
        using T = typename decltype(tag)::type;
        const T* const from = x.view().as<T>();
        std::transform(from, from + x.count(), y.view().as<T>(), SquaredRelu{});
      });
    } else {
#ifdef LESSONS_CUDA
      require(x.dtype() == DType::f32, name(), ": wants f32 on cuda");
      x.device()
          ->synchronize();  // x may still be on its way: the backend's kernels have a stream of their own
      squared_relu_on_cuda(x.view().as<float>(), y.view().as<float>(), x.count());
#endif
    }
    return {y};
  }

  /// The slope of max(x, 0)^2 is 2 max(x, 0).
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    return {g[0] * relu(saved.input(0)) * 2.0};
  }
  Reads reads() const override { return {0b1, 0b0}; }
};

Tensor squared_relu(const Tensor& x) { return apply_op<SquaredReluOp>({x}); }

void print(const char* name, const NDArray& numbers) {
  std::printf("  %-10s", name);
  for (const double number : numbers.to_vector<double>()) std::printf("%7.2f", number);
  std::printf("\n");
}

int main() {
  for (const Device device : all_devices()) {
    const Tensor x(NDArray::arange(9, DType::f32, device, -2, 0.5), true);
    const Tensor y = squared_relu(x);
    sum(y).backward();
    std::printf("on %s\n", device.name().c_str());
    print("x", x.array());
    print("y", y.array());
    print("dy/dx", x.grad());
  }
  if (all_devices().size() == 1) std::printf("no CUDA device: %s\n", reason_without_cuda().c_str());

  std::printf("\nagainst finite differences, in float64 on the CPU\n");
  bool passed = true;
  for (const int order : {1, 2}) {
    const auto row = check_gradient(
        "squared_relu", [](const Tensors& in) { return squared_relu(in[0]); },
        {NDArray::arange(8, DType::f64, cpu(), -1.75, 0.5)}, order);
    std::printf("  derivative %d   relative error %.1e   %s\n", order, row.error,
                row.passed ? "pass" : "FAIL");
    passed = passed && row.passed;
  }
  return passed ? 0 : 1;
}
