#include "needle/models/recurrent.h"

namespace needle {

namespace {

RecurrentCell cell_of(const ModelConfig& config) {
  if (config.kind == ModelKind::gru) return RecurrentCell::gru;
  if (config.kind == ModelKind::lstm) return RecurrentCell::lstm;
  return config.activation == Activation::relu ? RecurrentCell::relu : RecurrentCell::tanh;
}

}  // namespace

RecurrentBlock::RecurrentBlock(const ModelConfig& config, const Init& init)
    : norm(config.norm, config.width, config.bias, init, config.norm_epsilon),
      recurrence(cell_of(config), config.width, config.width, config.bias, init),
      dropout(config.dropout) {}

Tensor RecurrentBlock::forward(const Tensor& x, RecurrentState& state, const NDArray& real,
                               const Pass& pass) const {
  const Scope scope(*this);
  const RecurrentLayer::Result result = recurrence.forward(norm.forward(x), state, real);
  state = result.last;
  return dropout.forward(cast(result.states, x.dtype()), pass, x);
}

void RecurrentBlock::list(Parts& parts) {
  parts("norm", norm);
  parts("recurrence", recurrence);
}

RecurrentModel::RecurrentModel(const ModelConfig& config, Generator& random, Device device, DType dtype)
    : RecurrentModel(fitting(config, device, dtype), init_of(config, random, device, dtype)) {}

RecurrentModel::RecurrentModel(const ModelConfig& config, const Init& init)
    : TokenModel(config, init), norm_(config.norm, config.width, config.bias, init, config.norm_epsilon) {
  for (std::int64_t layer = 0; layer < config.layers; ++layer) blocks_.emplace_back(config, init);
  make_head(init);
  state();  // so that every part knows its path
}

Tensor RecurrentModel::states(const Tensor& embedded, const SequenceInput& input, const Pass& pass) {
  Tensor x = embedded;
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    RecurrentState state = blocks_[layer].recurrence.empty_state(x.size(0));
    std::vector<NDArray>* const kept = pass.past ? &pass.past->kept(static_cast<int>(layer)) : nullptr;
    if (kept && !kept->empty())
      state = {Tensor(kept->at(0)), kept->size() > 1 ? Tensor(kept->at(1)) : Tensor()};
    x = blocks_[layer].forward(x, state, input.real, pass);
    if (!kept) continue;
    *kept = {state.hidden.array()};
    if (state.cell.defined()) kept->push_back(state.cell.array());
  }
  return norm_.forward(x);
}

Cache RecurrentModel::empty_state(std::int64_t batch, std::int64_t, std::optional<DType>) {
  return Cache(static_cast<int>(config_.layers), batch, token_embedding_.weight.array().device());
}

void RecurrentModel::list(Parts& parts) {
  parts("token_embedding", token_embedding_);
  parts("blocks", blocks_);
  parts("norm", norm_);
  if (head_) parts("head", *head_);
}

}  // namespace needle
