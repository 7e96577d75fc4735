#include "needle/models/token_model.h"

namespace needle {

TokenModel::TokenModel(const ModelConfig& config, const Init& init)
    : config_(config), token_embedding_(config.vocabulary, config.width, init) {}

void TokenModel::make_head(const Init& init) {
  if (!config_.tied) head_.emplace(config_.width, config_.vocabulary, config_.bias, init);
}

Tensor TokenModel::tokens(const SequenceInput& input, const Pass& pass) {
  if (pass.past) pass.past->serve(*this);
  require(input.ids.defined() && input.ids.rank() == 2, "model: wants ids [batch, time]");
  require(!input.real.defined() || input.real.shape() == input.ids.shape(),
          "model: the mask must have the shape of the ids, ", input.ids.shape());
  return token_embedding_.forward(input.ids);
}

Tensor TokenModel::embed(const SequenceInput& input, const Pass& pass) {
  return Dropout(config_.dropout).forward(as_residual(tokens(input, pass)), pass);
}

Tensor TokenModel::head(const Tensor& states) {
  if (head_) return head_->forward(states, Epilogue::none, {}, head_->dtype());
  if (quantized_table_) return linear(states, *quantized_table_);
  return matmul_transposed(states, token_embedding_.weight);
}

void TokenModel::quantize() {
  if (!head_) quantized_table_ = needle::quantize(token_embedding_.weight.array().transpose());
}

Tensor TokenModel::head_loss(const Tensor& states, const NDArray& labels, const LossOptions& options) {
  const auto bytes = labels.count() * config_.vocabulary * static_cast<std::int64_t>(size_of(states.dtype()));
  constexpr std::int64_t kFitCaches = 16 << 20;
  const bool quantized = quantized_table_ || (head_ && head_->quantized);
  if (quantized || bytes <= kFitCaches) return SequenceModel::head_loss(states, labels, options);
  if (!head_) return linear_cross_entropy(states, token_embedding_.weight, {}, labels, options);
  return linear_cross_entropy(states, transpose(head_->weight), head_->bias, labels, options);
}

}  // namespace needle
