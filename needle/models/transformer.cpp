#include "needle/models/transformer.h"

namespace needle {

namespace {

/// With a past, positions that do not go on from it are those of a text whose beginning was cut off: what the
/// cache holds was read at other places (S38).
void check_positions(const SequenceInput& input, const std::vector<std::int64_t>& lengths) {
  const NDArray real =
      input.real.defined() ? input.real : NDArray::full(input.positions.shape(), 1, DType::boolean);
  const auto wanted = position_ids(real, lengths).to_vector<std::int64_t>(),
             given = input.positions.to_vector<std::int64_t>();
  const auto is_real = real.to_vector<bool>();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    require(!is_real[i] || given[i] == wanted[i], "cache: position ", given[i], " was given where ",
            wanted[i],
            " goes on from the past; a text whose beginning was dropped must be read again with a new cache");
  }
}

NDArray positions_of(const Tensor& x, const SequenceInput& input, const Pass& pass) {
  if (input.positions.defined()) {
    if (pass.past) check_positions(input, pass.past->lengths());
    return input.positions;
  }
  const NDArray real = input.real.defined()
                           ? input.real
                           : NDArray::full({x.size(0), x.size(1)}, 1, DType::boolean, x.device());
  return pass.past ? position_ids(real, pass.past->lengths()) : position_ids(real);
}

}  // namespace

Transformer::Transformer(const ModelConfig& config, const Init& init)
    : config_(config), dropout_(config.dropout) {
  if (config.positions == Positions::learned) position_embedding_.emplace(config.context, config.width, init);
  if (config.positions == Positions::sinusoidal) {
    sinusoidal_ = Tensor(sinusoidal_table(config.context, config.width, init.dtype, init.device));
  }
  for (std::int64_t layer = 0; layer < config.layers; ++layer) blocks_.emplace_back(config, init);
  if (config.order == NormOrder::pre)
    norm_.emplace(config.norm, config.width, config.bias, init, config.norm_epsilon);
}

Tensor Transformer::begin(const Tensor& tokens, const SequenceInput& input, const Pass& pass) {
  require(!input.real.defined() || input.real.shape() == Shape{tokens.size(0), tokens.size(1)},
          "model: the mask must be [batch, time] = [", tokens.size(0), ", ", tokens.size(1), "], got ",
          input.real.shape());
  if (config_.positions == Positions::rotary) return dropout_.forward(as_residual(tokens), pass);
  const NDArray positions = positions_of(tokens, input, pass);
  // Where the device runs ahead, nobody waits for positions that were given; looking them up tells later.
  if (positions.count() > 0 && !(input.positions.defined() && positions.device()->runs_ahead())) {
    const double last = reduce(Max{}, positions).item();
    require(last < static_cast<double>(config_.context), "model: position ", last, " is past the context of ",
            config_.context, " positions");
  }
  const Tensor places =
      position_embedding_ ? position_embedding_->forward(positions) : gather_rows(sinusoidal_, positions);
  return dropout_.forward(as_residual(tokens + places), pass);
}

Tensor Transformer::states(const Tensor& embedded, const SequenceInput& input, const Pass& pass,
                           const Tensor& memory) {
  require(!pass.past || config_.causal,
          "model: a cache holds only under a causal mask; this model is bidirectional");
  PassPositions positions{input.real, {}, memory, input.source_real};
  if (config_.positions == Positions::rotary) positions.ids = positions_of(embedded, input, pass);
  if (pass.past) pass.past->begin(embedded.size(1), input.real);
  Tensor x = embedded;
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    x = blocks_[layer].forward(x, positions, pass, static_cast<int>(layer));
  }
  if (pass.past) pass.past->finish();
  return norm_ ? norm_->forward(x) : x;
}

Cache Transformer::empty_state(std::int64_t batch, std::int64_t longest, std::optional<DType> storage) const {
  require(config_.causal, "model: a cache holds only under a causal mask; this model is bidirectional");
  require(config_.positions == Positions::rotary || longest <= config_.context, "model: a cache of ", longest,
          " positions was asked for, past the context of ", config_.context);
  const NDArray& weight = blocks_[0].norm1.weight.array();
  return Cache(static_cast<int>(config_.layers), batch, config_.key_value_heads, longest,
               config_.width / config_.heads, storage.value_or(weight.dtype()), weight.device());
}

void Transformer::list(Parts& parts) {
  if (position_embedding_) parts("position_embedding", *position_embedding_);
  parts("blocks", blocks_);
  if (norm_) parts("norm", *norm_);
}

}  // namespace needle
