// Lesson 1: scalars and the chain rule.
//
// A Tensor remembers how it was computed. Walking back from a result, the slopes along a path are multiplied;
// where a value was used several times, what its paths bring is added. Everything else here is these two
// rules.
//
// Exercise: find the slope of exp(-x^2 / 2) sin(x) by hand, as a plain function of a double. backward() and
// finite differences tell whether it is right. (answers/01_chain_rule.h)
#include <cmath>
#include <cstdio>

#include "needle/needle.h"

using namespace needle;

/// A number that wants its gradient.
Tensor variable(double value) { return Tensor(NDArray::scalar(value, DType::f64), true); }

void one_path() {
  const Tensor x = variable(1.5);
  const Tensor u = x * x;
  const Tensor y = sin(u);
  std::printf("one path: x = 1.5, u = x x, y = sin(u)\n");
  std::printf("  du/dx = 2 x       %9.6f\n", 2 * x.item());
  std::printf("  dy/du = cos(u)    %9.6f   by gradients(y, {u}): %.6f\n", std::cos(u.item()),
              gradients(y, {u})[0].item());
  y.backward();
  std::printf("  their product     %9.6f   by y.backward():      %.6f\n\n", 2 * x.item() * std::cos(u.item()),
              x.grad().item());
}

void two_paths() {
  const Tensor x = variable(1.5);
  const auto slope = [&](const Tensor& y) { return gradients(y, {x})[0].item(); };
  std::printf("two paths: y = x sin(x); detach() makes a constant of x, and so closes a path\n");
  std::printf("  x detached in the factor   %9.6f   x cos(x) = %.6f\n", slope(x.detach() * sin(x)),
              x.item() * std::cos(x.item()));
  std::printf("  x detached in the sine     %9.6f   sin(x)   = %.6f\n", slope(x * sin(x.detach())),
              std::sin(x.item()));
  std::printf("  both paths open            %9.6f   their sum\n\n", slope(x * sin(x)));
}

void many_steps() {
  std::printf("a long path: tanh after tanh, from x = 1: each step multiplies by a slope below 1\n");
  std::printf("  steps       value       slope\n");
  for (const int steps : {1, 2, 4, 8, 16, 32}) {
    const Tensor x = variable(1);
    Tensor y = x;
    for (int step = 0; step < steps; ++step) y = tanh(y);
    y.backward();
    std::printf("  %5d   %9.6f   %9.6f\n", steps, y.item(), x.grad().item());
  }
  std::printf("\n");
}

void many_inputs() {
  std::vector<Tensor> xs;
  for (int i = 1; i <= 5; ++i) xs.push_back(variable(i));
  Tensor product = xs[0];
  for (std::size_t i = 1; i < xs.size(); ++i) product = product * xs[i];
  product.backward();
  std::printf("many inputs: the product of 1, 2, 3, 4, 5; one walk back gives all slopes\n ");
  for (const Tensor& x : xs) std::printf("  d/d%.0f = %3.0f", x.item(), x.grad().item());
  std::printf("\n");
}

int main() {
  one_path();
  two_paths();
  many_steps();
  many_inputs();
}
