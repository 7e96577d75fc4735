#include "needle/models/decoder.h"

namespace needle {

Decoder::Decoder(const ModelConfig& config, Generator& random, Device device, DType dtype)
    : Decoder(fitting(config, device, dtype), transformer_init(config, random, device, dtype)) {}

Decoder::Decoder(const ModelConfig& config, const Init& init)
    : config_(config), token_embedding_(config.vocabulary, config.width, init), transformer_(config, init) {
  if (!config.tied) head_.emplace(config.width, config.vocabulary, config.bias, init);
  state();  // so that every part knows its path
}

Tensor Decoder::embed(const SequenceInput& input, const Pass& pass) {
  require(input.ids.defined() && input.ids.rank() == 2, "model: wants ids [batch, time]");
  return transformer_.begin(token_embedding_.forward(input.ids), input, pass);
}

Tensor Decoder::states(const Tensor& embedded, const SequenceInput& input, const Pass& pass) {
  return transformer_.states(embedded, input, pass);
}

Tensor Decoder::states(const Tensor& embedded, const SequenceInput& input, const Pass& pass,
                       const Tensor& memory) {
  return transformer_.states(embedded, input, pass, memory);
}

Tensor Decoder::head(const Tensor& states) {
  if (head_) return head_->forward(states, Epilogue::none, {}, head_->weight.dtype());
  return matmul_transposed(states, token_embedding_.weight);
}

Tensor Decoder::head_loss(const Tensor& states, const NDArray& labels, const LossOptions& options) {
  const auto bytes = labels.count() * config_.vocabulary * static_cast<std::int64_t>(size_of(states.dtype()));
  constexpr std::int64_t kFitCaches = 16 << 20;
  if (bytes <= kFitCaches) return SequenceModel::head_loss(states, labels, options);
  if (!head_) return linear_cross_entropy(states, token_embedding_.weight, {}, labels, options);
  return linear_cross_entropy(states, transpose(head_->weight), head_->bias, labels, options);
}

Cache Decoder::empty_state(std::int64_t batch, std::int64_t longest) {
  return transformer_.empty_state(batch, longest);
}

void Decoder::list(Parts& parts) {
  parts("token_embedding", token_embedding_);
  transformer_.list(parts);
  if (head_) parts("head", *head_);
}

Decoder Decoder::clone() {
  Generator unused(0);
  const NDArray& table = token_embedding_.weight.array();
  Decoder copy(config_, unused, table.device(), table.dtype());
  copy_state(*this, copy);
  return copy;
}

}  // namespace needle
