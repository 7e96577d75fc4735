// Lesson 6: gradients of gradients.
//
// With `differentiable`, gradients() records what it computes, so that its result can be differentiated
// again. The gradient of <grad f, v> is H v, the Hessian times a vector, for about the price of two
// gradients: H itself, n x n numbers, is never there. Newton's method steps by H^-1 grad f, and needs a
// handful of steps where descent needs thousands.
//
// Exercise: the Laplacian of f, the trace of its Hessian, from the products H e_i.
// (answers/06_second_order.h)
#include <cmath>
#include <cstdio>

#include "needle/needle.h"

using namespace needle;

Tensor point(double x, double y) { return Tensor(NDArray::from<double>({x, y}, {2}), true); }

/// (1 - x)^2 + 100 (y - x^2)^2, a bent valley whose floor hardly falls (Rosenbrock 1960); least at (1, 1).
Tensor rosenbrock(const Tensor& at) {
  const Tensor x = slice(at, 0, 0, 1), y = slice(at, 0, 1, 2);
  return sum(power(1.0 - x, 2) + 100.0 * power(y - x * x, 2));
}

struct Slopes {
  std::vector<double> gradient, product;  // grad f, and H v
};

Slopes slopes_at(const Tensor& at, const std::vector<double>& v) {
  const Tensor gradient = gradients(rosenbrock(at), {at}, {}, true)[0];
  const Tensor along = sum(gradient * Tensor(NDArray::from(v, {2})));
  return {gradient.array().to_vector<double>(), gradients(along, {at})[0].array().to_vector<double>()};
}

void print(int step, double x, double y, const std::vector<double>& gradient) {
  std::printf("  %5d   %9.6f   %9.6f   %9.1e   %9.1e\n", step, x, y, rosenbrock(point(x, y)).item(),
              std::hypot(gradient[0], gradient[1]));
}

int main() {
  const auto [g, product] = slopes_at(point(-1.2, 1), {1, 0});
  std::printf(
      "at (-1.2, 1): H (1, 0) = (%.1f, %.1f), by hand (1200 x^2 - 400 y + 2, -400 x) = (%.1f, %.1f)\n",
      product[0], product[1], 1200 * 1.44 - 400 + 2, 400 * 1.2);

  const char* const header = "   step           x           y           f    |grad f|\n";
  std::printf("\nNewton's method\n%s", header);
  double x = -1.2, y = 1;
  for (int step = 0; step <= 6; ++step) {
    const auto [gradient, first] = slopes_at(point(x, y), {1, 0});  // the Hessian, column after column
    const std::vector<double> second = slopes_at(point(x, y), {0, 1}).product;
    print(step, x, y, gradient);
    const double determinant = first[0] * second[1] - first[1] * second[0];  // Cramer's rule
    x -= (gradient[0] * second[1] - gradient[1] * second[0]) / determinant;
    y -= (gradient[1] * first[0] - gradient[0] * first[1]) / determinant;
  }

  std::printf("\ngradient descent, rate 0.001: much more and it flies out of the valley\n%s", header);
  Tensor at = point(-1.2, 1);
  for (int step = 0; step <= 10000; ++step) {
    rosenbrock(at).backward();
    const std::vector<double> where = at.array().to_vector<double>(),
                              gradient = at.grad().to_vector<double>();
    if (step == 0 || step == 10 || step == 100 || step == 1000 || step == 10000)
      print(step, where[0], where[1], gradient);
    NDArray numbers = at.array();
    add_into(unary(MultiplyScalar{-0.001}, at.grad()), numbers);
    at.clear_grad();
  }
}
