// Lesson 3: what is kept for the way back, and when it is freed.
//
// The way back needs some of the numbers of the way there: exp its result, log its argument, + nothing. Each
// op says by reads() which; the graph keeps these arrays, and all others are free as soon as nobody holds
// them. The walk back frees what it has used.
//
// Exercise: the graph of log(1.0 / (x + 1.0)) keeps 2 MiB here, since the division reads what it divides by,
// and the logarithm the quotient. But the slope of y = 1 / x is -y^2. Write `reciprocal`, an op like Square
// below, of which the same graph keeps 1 MiB. (answers/03_what_is_kept.h)
#include <cstdio>

#include "needle/needle.h"

using namespace needle;

/// An op of one's own: x^2. Its gradient 2 x g reads input 0 (bit 0 of the first mask) and no output.
struct Square final : Op {
  const char* name() const override { return "square"; }
  NDArrays compute(const NDArrays& inputs) override { return {binary(Multiply{}, inputs[0], inputs[0])}; }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    return {g[0] * saved.input(0) * 2.0};
  }
  Reads reads() const override { return {0b1, 0b0}; }
};

Tensor square(const Tensor& x) { return apply_op<Square>({x}); }

/// MiB of arrays that somebody holds.
double live() { return static_cast<double>(cpu()->memory_stats().live) / (1 << 20); }

void show(const char* formula, const char* why, Tensor (*f)(const Tensor&)) {
  const Tensor x(NDArray::full({512, 512}, 0.5), true);  // 1 MiB
  const double before = live();
  const Tensor loss = sum(f(x));  // a single number; what is held beside it, the graph holds
  const double kept = live() - before;
  loss.backward();
  std::printf("  %-20s %6.2f MiB   %6.2f MiB       %s\n", formula, kept, live() - before, why);
}

template <class F>
void show_error(const char* what, const F& function) {
  try {
    function();
  } catch (const Error& error) {
    std::printf("\n%s:\n  %s\n", what, error.what());
  }
}

int main() {
  std::printf("  x is 1 MiB          graph keeps   then x.grad      why\n");
  show("x + 1", "the slope is 1", [](const Tensor& x) { return x + 1.0; });
  show("tanh(x)", "the slope is 1 - y^2", [](const Tensor& x) { return tanh(x); });
  show("tanh(tanh(x))", "two results", [](const Tensor& x) { return tanh(tanh(x)); });
  show("log(exp(x))", "one array, read twice", [](const Tensor& x) { return log(exp(x)); });
  show("x x", "x itself, which is there anyway", [](const Tensor& x) { return x * x; });
  show("square(x + 1)", "what it squares", [](const Tensor& x) { return square(x + 1.0); });
  show("sigmoid(x) tanh(x)", "both, once", [](const Tensor& x) { return sigmoid(x) * tanh(x); });
  show("log(1 / (x + 1))", "the exercise", [](const Tensor& x) { return log(1.0 / (x + 1.0)); });
  show("x + tanh(x).detach()", "a constant has no graph",
       [](const Tensor& x) { return x + tanh(x).detach(); });

  const Tensor x(NDArray::full({2}, 0.5), true);
  show_error("walking back twice, since the first walk freed the graph", [&] {
    const Tensor y = sum(tanh(x));
    y.backward();
    y.backward();
  });
  show_error("writing into what a gradient will read", [&] {
    const Tensor h = x + 1.0, y = sum(square(h));
    NDArray(h.array()).assign(NDArray::zeros({2}));
    y.backward();
  });
}
