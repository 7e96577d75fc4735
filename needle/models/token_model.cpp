#include "needle/models/token_model.h"

#include <cmath>

#include "needle/precision.h"

namespace needle {

namespace {

/// Throws where the matrices alone do not fit into the device's memory.
ModelConfig fitting(const ModelConfig& config, Device device, DType dtype) {
  const double width = static_cast<double>(config.width),
               rows = static_cast<double>(config.layers) * (2 * width + 2 * static_cast<double>(config.ffn)) +
                      static_cast<double>(config.vocabulary);
  const double needed = rows * width * static_cast<double>(size_of(dtype)),
               there = static_cast<double>(device->total_memory());
  require(needed < there, "model: its matrices need ", std::llround(needed / 1e9), " GB, and ", device.name(),
          " has ", std::llround(there / 1e9));
  return config;
}

}  // namespace

Init TokenModel::init_of(const ModelConfig& config, Generator& random, Device device, DType dtype) {
  return {random, device, dtype, config.initialisation,
          1 / std::sqrt(2.0 * static_cast<double>(config.layers))};
}

TokenModel::TokenModel(const ModelConfig& config, const Init& init)
    : config_(fitting(config, init.device, init.dtype)),
      token_embedding_(config.vocabulary, config.width, init),
      dropout_(config.dropout) {
  if (config.order == NormOrder::pre)
    norm_.emplace(config.norm, config.width, config.bias, init, config.norm_epsilon);
  if (!config.tied) head_.emplace(config.width, config.vocabulary, config.bias, init);
}

void TokenModel::require_ids(const SequenceInput& input) const {
  require(input.ids.defined() && input.ids.rank() == 2, "model: wants ids [batch, time]");
  require(!input.real.defined() || input.real.shape() == input.ids.shape(),
          "model: the mask must have the shape of the ids, ", input.ids.shape());
}

Tensor TokenModel::begin_stream(const Tensor& x, const Pass& pass) const {
  return dropout_.forward(x.dtype() == DType::f32 ? cast(x, residual_dtype()) : x, pass);
}

Tensor TokenModel::embed(const SequenceInput& input, const Pass& pass) {
  require_ids(input);
  return begin_stream(token_embedding_.forward(input.ids), pass);
}

Tensor TokenModel::head(const Tensor& states) {
  if (head_) return head_->forward(states, Epilogue::none, {}, head_->weight.dtype());
  return matmul_transposed(states, token_embedding_.weight);
}

Tensor TokenModel::head_loss(const Tensor& states, const NDArray& labels, const LossOptions& options) {
  const auto bytes = labels.count() * config_.vocabulary * static_cast<std::int64_t>(size_of(states.dtype()));
  constexpr std::int64_t kFitCaches = 16 << 20;
  if (bytes <= kFitCaches) return SequenceModel::head_loss(states, labels, options);
  if (!head_) return linear_cross_entropy(states, token_embedding_.weight, {}, labels, options);
  return linear_cross_entropy(states, transpose(head_->weight), head_->bias, labels, options);
}

void TokenModel::list_head(Parts& parts) {
  if (norm_) parts("norm", *norm_);
  if (head_) parts("head", *head_);
}

}  // namespace needle
