#include "needle/models/decoder.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "needle/precision.h"

namespace needle {

namespace {

Init init_of(const DecoderConfig& config, Generator& random, Device device, DType dtype) {
  return {random, device, dtype, config.initialisation,
          1 / std::sqrt(2.0 * static_cast<double>(config.layers))};
}

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

Decoder::Decoder(const ModelConfig& config, Generator& random, Device device, DType dtype)
    : Decoder(fitting(config.resolved(), device, dtype), init_of(config, random, device, dtype)) {}

Decoder::Decoder(const ModelConfig& config, const Init& init)
    : config_(config), token_embedding_(config.vocabulary, config.width, init), dropout_(config.dropout) {
  if (config.positions == Positions::learned) position_embedding_.emplace(config.context, config.width, init);
  if (config.positions == Positions::sinusoidal) {
    sinusoidal_ = Tensor(sinusoidal_table(config.context, config.width, init.dtype, init.device));
  }
  for (std::int64_t layer = 0; layer < config.layers; ++layer) blocks_.emplace_back(config, init);
  if (config.order == NormOrder::pre)
    norm_.emplace(config.norm, config.width, config.bias, init, config.norm_epsilon);
  if (!config.tied) head_.emplace(config.width, config.vocabulary, config.bias, init);
  state();  // so that every part knows its path
}

NDArray Decoder::positions_of(const SequenceInput& input, const Pass& pass) const {
  if (input.positions.defined()) return input.positions;
  const NDArray real = input.real.defined()
                           ? input.real
                           : NDArray::full(input.ids.shape(), 1, DType::boolean, input.ids.device());
  return pass.past ? position_ids(real, pass.past->lengths()) : position_ids(real);
}

Tensor Decoder::embed(const SequenceInput& input, const Pass& pass) {
  require(input.ids.defined() && input.ids.rank() == 2, "decoder: wants ids [batch, time]");
  require(!input.real.defined() || input.real.shape() == input.ids.shape(),
          "decoder: the mask must have the shape of the ids, ", input.ids.shape());
  const Tensor tokens = token_embedding_.forward(input.ids);
  const auto as_stream = [&](const Tensor& x) {
    return dropout_.forward(x.dtype() == DType::f32 ? cast(x, residual_dtype()) : x, pass);
  };
  if (config_.positions == Positions::rotary) return as_stream(tokens);
  const NDArray positions = positions_of(input, pass);
  // Where the device runs ahead, nobody waits for positions that were given; looking them up tells later.
  if (positions.count() > 0 && !(input.positions.defined() && positions.device()->runs_ahead())) {
    const double last = reduce(Max{}, positions).item();
    require(last < static_cast<double>(config_.context), "decoder: position ", last,
            " is past the context of ", config_.context, " positions");
  }
  const Tensor places =
      position_embedding_ ? position_embedding_->forward(positions) : gather_rows(sinusoidal_, positions);
  return as_stream(tokens + places);
}

Tensor Decoder::states(const Tensor& embedded, const SequenceInput& input, const Pass& pass) {
  require(!pass.past || config_.causal,
          "decoder: a cache holds only under a causal mask; this model is bidirectional");
  PassPositions positions{input.real, {}};
  if (config_.positions == Positions::rotary) positions.ids = positions_of(input, pass);
  if (pass.past) pass.past->begin(input.ids.size(1), input.real);
  Tensor x = embedded;
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    x = blocks_[layer].forward(x, positions, pass, static_cast<int>(layer));
  }
  if (pass.past) pass.past->finish();
  return norm_ ? norm_->forward(x) : x;
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
  require(config_.causal, "decoder: a cache holds only under a causal mask; this model is bidirectional");
  require(config_.positions == Positions::rotary || longest <= config_.context, "decoder: a cache of ",
          longest, " positions was asked for, past the context of ", config_.context);
  const NDArray& table = token_embedding_.weight.array();
  return Cache(static_cast<int>(config_.layers), batch, config_.key_value_heads, longest,
               config_.width / config_.heads, table.dtype(), table.device());
}

void Decoder::list(Parts& parts) {
  parts("token_embedding", token_embedding_);
  if (position_embedding_) parts("position_embedding", *position_embedding_);
  parts("blocks", blocks_);
  if (norm_) parts("norm", *norm_);
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
