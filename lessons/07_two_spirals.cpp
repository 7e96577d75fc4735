// Lesson 7: learning, on a line and on two spirals.
//
// A step of training is three calls: backward() for the slopes, the optimizer's step() down them, and
// forgetting them. What can be learned is up to the model: a line has two numbers to find; two spirals need
// hidden layers to bend around. The boundary between the spirals, as the network sees it, goes to spirals.svg
// or the file given.
//
// Exercise: the best line needs no steps. Set both slopes of the mean squared error to 0, solve for slope and
// intercept, and see backward() agree that there is nowhere to go. (answers/07_two_spirals.h)
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "needle/inspect/svg_text.h"
#include "needle/needle.h"

using namespace needle;

struct Net : Module {
  Net(std::int64_t width, const Init& init)
      : in(2, width, true, init), middle(width, width, true, init), out(width, 1, true, init) {}
  Linear in, middle, out;
  Tensor forward(const Tensor& x) const { return out.forward(tanh(middle.forward(tanh(in.forward(x))))); }
  void list(Parts& parts) override { parts("in", in), parts("middle", middle), parts("out", out); }
};

template <class Model>
void train(Model& model, const Tensor& x, const Tensor& y, int steps, double learning_rate) {
  Adam optimizer(groups_by_rank(model.parameters(), 0), AdamDecay::decoupled);
  for (int step = 0; step <= steps; ++step) {
    const Tensor error = model.forward(x) - y, loss = mean(error * error);
    if (step % (steps / 4) == 0) std::printf("  step %4d   mean squared error %.4f\n", step, loss.item());
    loss.backward();
    optimizer.step(learning_rate);
    optimizer.clear_gradients();
  }
}

void draw(const Net& net, const Tensor& points, const Tensor& labels, const std::filesystem::path& file) {
  constexpr int kCells = 64, kSide = 512;  // cells and units along a side, which goes from -1 to 1
  const NDArray axis = NDArray::arange(kCells, DType::f32, cpu(), -1 + 1.0 / kCells, 2.0 / kCells);
  const Tensor across(axis.reshape({1, kCells}).broadcast_to({kCells, kCells})), down = transpose(across);
  const auto scores = net.forward(stack({across, down}, 2)).array().to_vector<float>();
  std::ofstream out(file);
  out << svg_start("Two spirals", kSide, kSide, 12);
  for (std::size_t i = 0; i < scores.size(); ++i)
    out << "<rect x='" << i % kCells * 8 << "' y='" << i / kCells * 8 << "' width='8' height='8' fill='"
        << (scores[i] > 0 ? "#f6c9a0" : "#a6cbe3") << "'/>\n";
  for (std::int64_t i = 0; i < points.size(0); ++i)
    out << "<circle cx='" << (points.array().item({i, 0}) + 1) * kSide / 2 << "' cy='"
        << (points.array().item({i, 1}) + 1) * kSide / 2 << "' r='4' stroke='#fff' fill='"
        << (labels.array().item({i, 0}) > 0 ? "#d55e00" : "#0072b2") << "'/>\n";
  out << "</svg>\n";
}

int main(int count, char** arguments) {
  Generator random(1);
  const Tensor x(NDArray::random({Distribution::Kind::uniform, -1, 1}, {100, 1}, random));
  const Tensor noise(NDArray::random({Distribution::Kind::normal, 0, 0.1}, {100, 1}, random));
  Linear line(1, 1, true, Init{random});
  std::printf("a line: y = 3 x - 1, with noise whose mean square is about 0.01\n");
  train(line, x, x * 3.0 - 1.0 + noise, 400, 0.05);
  std::printf("  found      y = %.2f x - %.2f\n\n", line.weight.item(), -line.bias.item());

  const Tensor along(NDArray::arange(100, DType::f32, cpu(), 0.05, 0.0095)), angle = along * 10.0;
  const Tensor spiral = stack({along * cos(angle), along * sin(angle)}, 1), ones(NDArray::ones({100, 1}));
  const Tensor at = concatenate({spiral, -spiral}, 0), wanted = concatenate({ones, -ones}, 0);
  std::printf("two spirals, 100 points each, labels 1 and -1, by a linear map\n");
  Linear flat(2, 1, true, Init{random});
  train(flat, at, wanted, 400, 0.05);
  std::printf("by two hidden layers of 32\n");
  Net net(32, Init{random, cpu(), DType::f32, Initialisation::uniform});
  train(net, at, wanted, 1200, 0.01);
  const auto file = std::filesystem::absolute(count > 1 ? arguments[1] : "spirals.svg");
  draw(net, at, wanted, file);
  std::printf("  drawn in %s\n", file.c_str());
}
