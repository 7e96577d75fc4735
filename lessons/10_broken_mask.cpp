// Lesson 10: a causal mask, broken on purpose, and how that is found.
//
// A model that predicts the next token must not read it. One that does has a wonderful loss, generates
// nonsense, and raises no error; so whether it reads the future is measured: by gradient, which outputs
// depend on which inputs; and by change, which logits move when the input does from some position on.
//
// Exercise: subtracting from each state its mean over all positions reads the future as well. Write
// `centred`: each state minus the mean of the states up to it. (answers/10_broken_mask.h)
#include <cstdio>
#include <iostream>

#include "needle/needle.h"

using namespace needle;

/// One layer of attention whose queries believe to stand `shift` positions later than they do.
class OneLayer : public TokenModel {
 public:
  OneLayer(const ModelConfig& config, std::int64_t shift, Generator& random)
      : OneLayer(config.resolved(), shift, init_of(config, random, cpu(), DType::f32)) {}

  Tensor states(const Tensor& embedded, const SequenceInput&, const Pass&) override {
    AttentionOptions options;
    options.causal = true;
    options.offset = shift_;  // the position of query 0: it reads the keys up to there
    const std::int64_t heads = config().heads;
    return embedded + out_.forward(self_attention(qkv_.forward(embedded), heads, heads, options));
  }
  Cache empty_state(std::int64_t, std::int64_t, std::optional<DType>) override { fail("keeps no state"); }
  void list(Parts& parts) override {
    parts("token_embedding", token_embedding_), parts("qkv", qkv_), parts("out", out_);
  }

 private:
  OneLayer(const ModelConfig& config, std::int64_t shift, const Init& init)
      : TokenModel(config, init),
        shift_(shift),
        qkv_(config.width, 3 * config.width, false, init),
        out_(config.width, config.width, false, init) {}
  std::int64_t shift_;
  Linear qkv_, out_;
};

/// Random tokens, of which nothing can be told but by looking: the loss of the last 100 steps of 1000.
double loss_on_random_tokens(OneLayer& model, Generator& random) {
  Adam optimizer(groups_by_rank(model.parameters(), 0), AdamDecay::decoupled);
  double late = 0;
  for (int step = 0; step < 1000; ++step) {
    std::vector<std::int64_t> ids(32 * 9);
    for (std::int64_t& id : ids) id = random.below(model.vocabulary_size());
    const NDArray rows = NDArray::from(ids, {32, 9});
    const Tensor loss = model.loss({rows.slice(1, 0, 8), {}, {}}, rows.slice(1, 1, 9));
    if (step >= 900) late += loss.item() / 100;
    loss.backward();
    optimizer.step(0.01);
    optimizer.clear_gradients();
  }
  return late;
}

int main() {
  for (const std::int64_t shift : {0, 1}) {
    Generator random(1);
    DecoderConfig config = DecoderConfig::of_size(8, 8, 32, 1, 2);
    config.initialisation = Initialisation::uniform;
    OneLayer model(config, shift, random);
    const Boundary boundary = measure_boundary(model, random_input(model.config(), 8, random), random);
    std::cout << heat_map_text(boundary_picture(boundary, "offset " + std::to_string(shift)));
    if (const auto pair = boundary.offence())
      std::cout << "output " << pair->output + 1 << " reads input " << pair->input + 1 << '\n';
    else
      std::cout << "no output reads a later input\n";
    std::printf("loss on random tokens %.3f nats; the least without looking ahead is ln 8 = 2.079\n\n",
                loss_on_random_tokens(model, random));
  }
}
