// Lesson 2: tensors, and what broadcasting does to a gradient.
//
// Broadcasting repeats the smaller operand without copying it: along a repeated axis its view has stride 0.
// One number of it then takes part in many results, and lesson 1 says what follows: its gradient is the sum
// over all of them. So the gradient of repeating is summing, and the gradient of summing is repeating.
//
// Exercise: in y = a / b with b broadcast to the shape of a, the gradient of the divisor is -g a / b^2, but
// in the shape of a. Write it in the shape of b, for any b that broadcasts. (answers/02_broadcasting.h)
#include <cstdio>
#include <sstream>

#include "needle/needle.h"

using namespace needle;

/// "[2, 3]"
std::string text(const Shape& shape) {
  std::ostringstream out;
  out << shape;
  return out.str();
}

void print(const char* name, const NDArray& numbers) {
  std::printf("  %-14s %-8s", name, text(numbers.shape()).c_str());
  for (const double number : numbers.to_vector<double>()) std::printf("%8.3g", number);
  std::printf("\n");
}

/// The gradient of b in sum(a b): it adds up the numbers of a that each number of b has met.
void show(const Tensor& a, const Shape& shape, const char* repeated) {
  const Tensor b(NDArray::ones(shape, DType::f64), true);
  sum(a * b).backward();
  std::printf("  %-8s %-8s %-16s", text(shape).c_str(),
              text(b.array().broadcast_to(a.shape()).strides()).c_str(), repeated);
  for (const double slope : b.grad().to_vector<double>()) std::printf("%4.0f", slope);
  std::printf("\n");
}

int main() {
  const Tensor a(NDArray::arange(6, DType::f64, cpu(), 1).reshape({2, 3}));
  print("a", a.array());

  std::printf("\nthe gradient of b in sum(a b)\n  b        strides  repeated        gradient\n");
  show(a, {2, 3}, "not at all");
  show(a, {3}, "down the rows");
  show(a, {1, 3}, "down the rows");
  show(a, {2, 1}, "along columns");
  show(a, {}, "everywhere");

  std::printf("\nthe other way round: a mean sums, so its gradient repeats one number\n");
  const Tensor x(a.array(), true);
  mean(x).backward();
  print("of mean(x)", x.grad());

  // A layer's bias is the case that everybody meets.
  std::printf("\na linear layer of 4 rows, loss = sum(y^2), every y = 2, so that g = dloss/dy = 4\n");
  const Tensor rows(NDArray::ones({4, 2}, DType::f64)), weight(NDArray::ones({2, 3}, DType::f64), true);
  const Tensor bias(NDArray::zeros({3}, DType::f64), true);
  const Tensor y = matmul(rows, weight) + bias;
  sum(y * y).backward();
  print("of the bias", bias.grad());
  print("of the weight", weight.grad());
  std::printf("  both sum over the 4 rows: the bias by broadcasting, the weight in the product x^T g\n");

  std::printf("\nshapes that do not broadcast are an error\n");
  try {
    a + Tensor(NDArray::ones({2}, DType::f64));
  } catch (const Error& error) {
    std::printf("  %s\n", error.what());
  }
}
