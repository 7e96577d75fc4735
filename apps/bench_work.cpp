#include "apps/bench_work.h"

#include <charconv>

#include "backends/clock.h"
#include "needle/nn/convolution.h"
#include "needle/nn/recurrent.h"
#include "needle/precision.h"
#include "needle/train/trainer.h"

namespace needle {

namespace {

/// Rows of random tokens; the last 1/16 of each is PAD.
Batch random_batch(std::int64_t vocabulary, std::int64_t time, std::int64_t rows_wanted) {
  Generator random(2);
  std::vector<TokenRow> rows(static_cast<std::size_t>(rows_wanted));
  const std::int64_t real = time - time / 16;
  for (TokenRow& row : rows) {  // BOS comes before them
    for (std::int64_t t = 1; t < real; ++t)
      row.push_back(kFirstContentId + random.below(vocabulary - kFirstContentId));
  }
  RowFormat format;
  format.context = format.width_multiple = time;
  return make_rows_batch(rows, format);
}

/// A decoder.
class DecoderWork final : public Work {
 public:
  DecoderWork(const std::string& name, const DecoderConfig& config, std::int64_t rows, Device device)
      : Work(name, rows * config.context, device), random_(1), model_(config, random_, device) {
    const Batch batch = random_batch(config.vocabulary, config.context, rows);
    input_ = input_of(batch, device);
    labels_ = labels_of(batch, device);
    train(model_.parameters());
  }
  std::int64_t logit_count() const override { return tokens() * model_.vocabulary_size(); }

 private:
  Tensor output() override { return model_.loss(input_, labels_); }

  Generator random_;
  Decoder model_;
  SequenceInput input_;
  NDArray labels_;
};

constexpr std::int64_t kWidth = 256, kVocabulary = 65, kRows = 16;

/// What stands around the layers of the small sequence models.
struct SequenceParts : Module {
  explicit SequenceParts(const Init& init)
      : embedding(kVocabulary, kWidth, init), head(kWidth, kVocabulary, true, init) {}
  Embedding embedding;
  std::vector<RecurrentLayer> recurrent;
  std::vector<CausalConvolution> convolutions;
  Linear head;
  void list(Parts& parts) override {
    parts("embedding", embedding);
    parts("recurrent", recurrent);
    parts("convolutions", convolutions);
    parts("head", head);
  }
};

/// A recurrent layer, or six convolutions.
class SequenceWork final : public Work {
 public:
  SequenceWork(const std::string& name, std::optional<RecurrentCell> cell, std::int64_t time, Device device)
      : Work(name, kRows * time, device), random_(1), model_(init()) {
    constexpr int kLayers = 6, kKernel = 3;
    if (cell) model_.recurrent.emplace_back(*cell, kWidth, kWidth, true, init());
    for (int i = 0; i < kLayers && !cell; ++i)
      model_.convolutions.emplace_back(kWidth, kWidth, kKernel, 1, true, init());
    const Batch batch = random_batch(kVocabulary, time, kRows);
    ids_ = input_of(batch, device).ids;
    labels_ = labels_of(batch, device);
    train(model_.parameters());
  }
  std::int64_t logit_count() const override { return tokens() * kVocabulary; }

 private:
  Init init() { return {random_, device(), DType::f32, Initialisation::uniform}; }

  Tensor output() override {
    Tensor x = model_.embedding.forward(ids_);
    for (const RecurrentLayer& layer : model_.recurrent)
      x = layer.forward(x, layer.empty_state(kRows)).states;
    for (const CausalConvolution& layer : model_.convolutions) x = layer.forward(x, Epilogue::gelu, x);
    return cross_entropy(model_.head.forward(x, Epilogue::none, {}, x.dtype()), labels_);
  }

  Generator random_;
  SequenceParts model_;
  NDArray ids_, labels_;
};

/// Causal attention alone.
class AttentionWork final : public Work {
 public:
  AttentionWork(const std::string& name, std::int64_t batch, std::int64_t heads, std::int64_t time, Device device)
      : Work(name, batch * time, device) {
    Generator random(1);
    const Distribution normal{Distribution::Kind::normal, 0, 1};
    constexpr std::int64_t kHeadWidth = 64;
    const Shape shape{batch, heads, time, kHeadWidth};
    const auto draw = [&] {
      return NDArray::random(normal, shape, random, DType::f32, device).cast(product_dtype());
    };
    for (Tensor& tensor : inputs_) tensor = Tensor(draw(), true);
    seed_ = draw();
  }

 private:
  Tensor output() override {
    for (Tensor& tensor : inputs_) tensor.clear_grad();
    return attention(inputs_[0], inputs_[1], inputs_[2], {.causal = true});
  }
  NDArray seed() const override { return seed_; }

  Tensor inputs_[3];
  NDArray seed_;
};

constexpr std::int64_t kLongest = 1 << 17;

/// The kinds of work, with the positions that each has by itself.
constexpr std::pair<std::string_view, std::int64_t> kKinds[] = {
    {"W1", 64},    {"W2", 256},          {"W3", 64},        {"rnn", 128},
    {"lstm", 128}, {"convolution", 256}, {"attention", 256}, {"G124-attention", 1024}, {"G124", 1024}};

struct Kind {
  std::string_view name;  // empty: unknown
  std::int64_t time;
};

/// What "NAME" or "NAME-T" asks for.
Kind kind_of(std::string_view name) {
  for (const auto& [kind, usual] : kKinds) {
    if (name == kind) return {kind, usual};
    if (!name.starts_with(kind) || name[kind.size()] != '-') continue;
    const std::string_view digits = name.substr(kind.size() + 1);
    const char* const end = digits.data() + digits.size();
    std::int64_t time = 0;
    if (std::from_chars(digits.data(), end, time).ptr == end && time > 0 && time <= kLongest)
      return {kind, time};
  }
  return {};
}

}  // namespace

std::int64_t Work::parameter_count() const {
  std::int64_t count = 0;
  for (const Parameter& parameter : parameters_) count += parameter.tensor.array().count();
  return count;
}

void Work::train(std::vector<Parameter> parameters) {
  parameters_ = std::move(parameters);
  optimizer_.emplace(groups_by_rank(parameters_, 0.1), AdamDecay::decoupled, 0.9, 0.95);
  optimizer_->set_learning_rate(3e-4);
}

void Work::update() {
  if (!optimizer_) return;
  optimizer_->clip({1});
  optimizer_->step();
  optimizer_->clear_gradients();
}

StepTimes Work::step() {
  const double start = now();
  const Tensor result = output();
  device_->synchronize();
  const double forward = now();
  result.backward(seed());
  device_->synchronize();
  const double backward = now();
  update();
  device_->synchronize();
  return {forward - start, backward - forward, now() - backward};
}

double Work::seconds_of(int steps) {
  const auto whole = [&] {
    output().backward(seed());
    update();
  };
  device_->synchronize();
  const double start = now();
  for (int i = 0; i < steps; ++i) {
    if (recording_)
      recording_->run(whole, 0);
    else
      whole();
  }
  device_->synchronize();
  return (now() - start) / steps;
}

void Work::record() {
  recording_ = device_->new_recording();
  require(recording_ != nullptr, "bench: steps can be recorded on cuda devices alone, not on ", device_.name());
  seconds_of(3);  // as always, recorded, and replayed
}

std::int64_t work_time(const std::string& name) {
  require_work(name);
  return kind_of(name).time;
}

std::string work_of_time(const std::string& name, std::int64_t time) {
  return std::string(kind_of(name).name) + '-' + std::to_string(time);
}

std::unique_ptr<Work> make_work(const std::string& name, Device device) {
  require_work(name);
  const auto [kind, time] = kind_of(name);
  if (kind == "W1")
    return std::make_unique<DecoderWork>(name, DecoderConfig::of_size(65, time, 128, 4, 4), 12, device);
  if (kind == "W2")
    return std::make_unique<DecoderWork>(name, DecoderConfig::of_size(512, time, 384, 6, 6), 8, device);
  if (kind == "W3")
    return std::make_unique<DecoderWork>(name, DecoderConfig::of_size(50257, time, 768, 12, 12), 4, device);
  if (kind == "rnn") return std::make_unique<SequenceWork>(name, RecurrentCell::tanh, time, device);
  if (kind == "lstm") return std::make_unique<SequenceWork>(name, RecurrentCell::lstm, time, device);
  require(kind != "convolution" || product_dtype() == DType::f32, "bench: convolutions are computed in f32");
  if (kind == "convolution") return std::make_unique<SequenceWork>(name, std::nullopt, time, device);
  if (kind == "G124")
    return std::make_unique<DecoderWork>(name, DecoderConfig::of_size(50257, time, 768, 12, 12), 8, device);
  if (kind == "G124-attention") return std::make_unique<AttentionWork>(name, 8, 12, time, device);
  return std::make_unique<AttentionWork>(name, 2, 8, time, device);
}

void require_work(const std::string& name) {
  if (!kind_of(name).name.empty()) return;
  std::string all;
  for (const auto& [kind, usual] : kKinds) all += (all.empty() ? "" : ", ") + std::string(kind);
  fail("bench: there is no work '", name, "'; there are ", all, ", and each with '-T' for 1 to ", kLongest,
       " positions");
}

}  // namespace needle
