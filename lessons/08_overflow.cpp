// Lesson 8: softmax and a loss that do not overflow.
//
// softmax(x) = exp(x) / sum(exp(x)) leaves float32 as soon as a score is above 88 or all are below -104, and
// its logarithm as soon as a probability is below 1e-38. Yet neither the answer nor its gradient is large:
// only the way there is. Adding a constant to all scores changes nothing, so subtract their largest; and take
// log(softmax(x)) as x - logsumexp(x) rather than the logarithm of what has become 0.
//
// Exercise: the loss of a yes or no question, -log sigmoid(z) where the label is 1 and -log(1 - sigmoid(z))
// where it is 0, from the score z. It and its gradient sigmoid(z) - label must hold for any z.
// (answers/08_overflow.h)
#include <cmath>
#include <cstdio>

#include "needle/needle.h"

using namespace needle;

Tensor naive_softmax(const Tensor& x) { return exp(x) / sum(exp(x), {-1}, true); }

Tensor shifted_softmax(const Tensor& x) {
  const Tensor e =
      exp(x - max(x, {-1}, true).detach());  // a constant: whatever is subtracted, the result is it
  return e / sum(e, {-1}, true);
}

/// -log p of the right class by the formula, and by x - logsumexp(x).
Tensor naive_loss(const Tensor& x, std::int64_t right) {
  return -sum(log(slice(naive_softmax(x), -1, right, right + 1)));
}
Tensor stable_loss(const Tensor& x, std::int64_t right) {
  const Tensor shifted = x - max(x, {-1}, true).detach();
  return sum(log(sum(exp(shifted), {-1}, true)) - slice(shifted, -1, right, right + 1));
}
Tensor library_loss(const Tensor& x, std::int64_t right) {
  return cross_entropy(x, NDArray::from<std::int64_t>({right}, {1}));
}

void print(const NDArray& numbers) {
  for (const float x : numbers.to_vector<float>()) std::printf("%12.4g", std::isnan(x) ? NAN : x);
  std::printf("\n");
}
void print(const char* name, const NDArray& numbers) {
  std::printf("  %-18s", name);
  print(numbers);
}

Tensor scores(const std::vector<float>& values) { return Tensor(NDArray::from(values, {1, 3}), true); }

void show_loss(const char* name, Tensor (*loss)(const Tensor&, std::int64_t),
               const std::vector<float>& values) {
  const Tensor x = scores(values), l = loss(x, 0);
  l.backward();
  std::printf("  %-18s%12.4g   gradient", name, l.item());
  print(x.grad());
}

int main() {
  for (const float scale : {1.0f, 100.0f, -200.0f}) {
    const Tensor x = scores({scale, 2 * scale, 3 * scale});
    print("scores", x.array());
    print("softmax, naive", naive_softmax(x).array());
    print("softmax, shifted", shifted_softmax(x).array());
    print("softmax of needle", softmax(x).array());
    std::printf("\n");
  }
  for (const float top : {2.0f, 60.0f, 120.0f}) {
    std::printf("-log p of the first class, scores 0, %.0f, 1\n", top);
    show_loss("naive", naive_loss, {0, top, 1});
    show_loss("stable", stable_loss, {0, top, 1});
    show_loss("cross_entropy()", library_loss, {0, top, 1});
  }
}
