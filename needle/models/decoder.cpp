#include "needle/models/decoder.h"

namespace needle {

Decoder::Decoder(const ModelConfig& config, Generator& random, Device device, DType dtype)
    : Decoder(config.resolved(), init_of(config, random, device, dtype)) {}

Decoder::Decoder(const ModelConfig& config, const Init& init) : TokenModel(config, init) {
  if (config.positions == Positions::learned) position_embedding_.emplace(config.context, config.width, init);
  if (config.positions == Positions::sinusoidal) {
    sinusoidal_ = Tensor(sinusoidal_table(config.context, config.width, init.dtype, init.device));
  }
  for (std::int64_t layer = 0; layer < config.layers; ++layer) blocks_.emplace_back(config, init);
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
  require_ids(input);
  if (config_.positions == Positions::rotary) return TokenModel::embed(input, pass);
  const NDArray positions = positions_of(input, pass);
  // Where the device runs ahead, nobody waits for positions that were given; looking them up tells later.
  if (positions.count() > 0 && !(input.positions.defined() && positions.device()->runs_ahead())) {
    const double last = reduce(Max{}, positions).item();
    require(last < static_cast<double>(config_.context), "decoder: position ", last,
            " is past the context of ", config_.context, " positions");
  }
  const Tensor places =
      position_embedding_ ? position_embedding_->forward(positions) : gather_rows(sinusoidal_, positions);
  return begin_stream(token_embedding_.forward(input.ids) + places, pass);
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
  list_head(parts);
}

Decoder Decoder::clone() {
  Generator unused(0);
  const NDArray& table = token_embedding_.weight.array();
  Decoder copy(config_, unused, table.device(), table.dtype());
  copy_state(*this, copy);
  return copy;
}

}  // namespace needle
