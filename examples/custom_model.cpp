// A sequence model of one's own: each state is the mean of all tokens so far.
#include <iostream>

#include "needle/needle.h"

using namespace needle;

class MeanOfPast : public TokenModel {
 public:
  MeanOfPast(const ModelConfig& config, Generator& random, Device device = cpu(), DType dtype = DType::f32)
      : MeanOfPast(fitting(config, device, dtype), init_of(config, random, device, dtype)) {}

  Tensor states(const Tensor& embedded, const SequenceInput&, const Pass&) override {
    const std::int64_t time = embedded.size(1);
    const Tensor counts(NDArray::arange(time, embedded.dtype(), embedded.device(), 1).reshape({1, time, 1}));
    return mix_.forward(cumulative_sum(embedded, 1) / counts, Epilogue::gelu, embedded);
  }
  Cache empty_state(std::int64_t, std::int64_t, std::optional<DType>) override {
    fail("mean of past: keeps no state");
  }
  void list(Parts& parts) override {
    parts("token_embedding", token_embedding_);
    parts("mix", mix_);
    if (head_) parts("head", *head_);
  }

 private:
  MeanOfPast(const ModelConfig& config, const Init& init)
      : TokenModel(config, init), mix_(config.width, config.width, config.bias, init) {
    make_head(init);
    state();  // so that every part knows its path
  }
  Linear mix_;
};

int main() {
  Generator random(1);
  MeanOfPast model(DecoderConfig::of_size(16, 12, 24, 1, 1), random);
  const SequenceInput input = random_input(model.config(), 12, random);
  const Boundary boundary = measure_boundary(model, input, random);
  std::cout << heat_map_text(boundary_picture(boundary, "mean of past"));
  std::cout << (boundary.causal() ? "no position reads the future\n" : "a position reads the future\n");
  const Tensor loss = model.loss(input, input.ids);
  loss.backward();
  std::cout << "loss " << loss.item() << ", " << model.parameter_count() << " parameters\n";
  return boundary.causal() ? 0 : 1;
}
