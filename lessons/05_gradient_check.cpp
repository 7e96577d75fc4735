// Lesson 5: checking a gradient, and what the check catches.
//
// A gradient that is wrong still trains, only worse, and no error tells. So each op here is checked against
// finite differences: (f(x + h) - f(x - h)) / 2h. Its error has two parts: the formula's, about h^2, and
// rounding, about 1e-16 / h. So there is a best h, and float32 is too coarse to check anything.
//
// Exercise: write the op `hinge`, max(1 - x, 0)^2, so that it passes the check in both orders away from its
// kink at 1. (answers/05_gradient_check.h)
#include <cmath>
#include <cstdio>

#include "needle/inspect/gradient_check.h"
#include "needle/needle.h"

using namespace needle;

/// What a mistake in a gradient looks like; all three compute x^3.
enum class Gradient { right, wrong_factor, outside_the_graph };

template <Gradient kind>
struct Cube final : Op {
  const char* name() const override { return "cube"; }
  Reads reads() const override { return {0b1, 0b0}; }
  NDArrays compute(const NDArrays& inputs) override { return {unary(PowerScalar{3}, inputs[0])}; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    const Tensor x = saved.input(0);
    if (kind == Gradient::wrong_factor) return {g[0] * x * x * 2.0};
    // The numbers are right, but a constant's: who differentiates them again is told of no x.
    if (kind == Gradient::outside_the_graph) return {g[0] * Tensor(saved.input_array(0)) * x.detach() * 3.0};
    return {g[0] * x * x * 3.0};
  }
};

template <Gradient kind>
void check(const char* what) {
  std::printf("  %-30s", what);
  for (const int order : {1, 2}) {
    const auto row = check_gradient(
        "cube", [](const Tensors& in) { return apply_op<Cube<kind>>({in[0]}); },
        {NDArray::arange(5, DType::f64, cpu(), -1, 0.45)}, order);
    std::printf("   %.0e %s", row.error, row.passed ? "pass" : "FAIL");
  }
  std::printf("\n");
}

/// The relative error of the difference quotient of exp at 1, computed in `dtype`.
double error_of_difference(double h, DType dtype) {
  const auto at = [&](double x) { return exp(Tensor(NDArray::scalar(x, dtype))).item(); };
  return std::abs((at(1 + h) - at(1 - h)) / (2 * h) / std::exp(1.0) - 1);
}

int main() {
  std::printf("the slope of exp at 1 by (f(x + h) - f(x - h)) / 2h\n");
  std::printf("         h   error in float64   in float32\n");
  for (int digits = 1; digits <= 11; digits += 2) {
    const double h = std::pow(10, -digits);
    std::printf("  %8.0e   %16.0e   %10.0e\n", h, error_of_difference(h, DType::f64),
                error_of_difference(h, DType::f32));
  }

  std::printf("\ncheck_gradient() of x^3, relative errors    order 1      order 2\n");
  check<Gradient::right>("g x x 3");
  check<Gradient::wrong_factor>("g x x 2");
  check<Gradient::outside_the_graph>("g x x 3, x taken as an array");
  std::printf("  order 2 differentiates the gradient itself: only there the last mistake shows\n");
}
