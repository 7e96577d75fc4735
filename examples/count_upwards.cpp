// A program that trains: a small decoder learns to count.
#include <iostream>

#include "needle/needle.h"

using namespace needle;

int main() {
  DecoderConfig config;
  config.vocabulary = 10;
  config.context = 12;
  config.width = 32;
  config.layers = 1;
  Generator random(1);
  Decoder model(config, random);
  Adam optimizer(groups_by_rank(model.parameters(), 0.1), AdamDecay::decoupled);

  for (int step = 1; step <= 200; ++step) {
    std::vector<std::int64_t> ids, labels;  // rows of digits that count on from anywhere; 0 follows 9
    for (int row = 0; row < 8; ++row) {
      const std::int64_t first = random.below(10);
      for (int t = 0; t < 12; ++t) {
        ids.push_back((first + t) % 10);
        labels.push_back((first + t + 1) % 10);
      }
    }
    const Tensor loss = model.loss({NDArray::from(ids, {8, 12}), {}, {}}, NDArray::from(labels, {8, 12}));
    loss.backward();
    optimizer.step(3e-3);
    optimizer.clear_gradients();
    if (step % 50 == 0) std::cout << "step " << step << ", loss " << loss.item() << '\n';
  }

  GenerateSettings greedy;
  greedy.new_tokens = 8;
  greedy.sampler.temperature = 0;
  const std::vector<std::int64_t> answer = generate(model, {{3, 4, 5}}, greedy, random)[0].ids;
  std::cout << "3 4 5 ->";
  for (const std::int64_t id : answer) std::cout << ' ' << id;
  std::cout << '\n';
  return answer == std::vector<std::int64_t>{6, 7, 8, 9, 0, 1, 2, 3} ? 0 : 1;
}
