// The small program of the README: a network with one hidden layer learns the exclusive or.
#include <iostream>

#include "needle/needle.h"

using namespace needle;

struct Net : Module {
  explicit Net(const Init& init) : up(2, 16, true, init), down(16, 1, true, init) {}
  Linear up, down;
  Tensor forward(const Tensor& x) const { return down.forward(tanh(up.forward(x))); }
  void list(Parts& parts) override { parts("up", up), parts("down", down); }
};

int main() {
  Generator random(1);
  Net net(Init{random, cpu(), DType::f32, Initialisation::uniform});
  const Tensor x(NDArray::from<float>({0, 0, 0, 1, 1, 0, 1, 1}, {4, 2}));
  const Tensor y(NDArray::from<float>({0, 1, 1, 0}, {4, 1}));
  Adam optimizer(groups_by_rank(net.parameters(), 0), AdamDecay::decoupled);
  Tensor loss;
  for (int step = 1; step <= 500; ++step) {
    const Tensor difference = net.forward(x) - y;
    loss = mean(difference * difference);
    loss.backward();
    optimizer.step(0.02);
    optimizer.clear_gradients();
    if (step % 100 == 0) std::cout << "step " << step << "  loss " << loss.item() << '\n';
  }
  return loss.item() < 0.001 ? 0 : 1;
}
