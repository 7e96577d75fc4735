#include "needle/models/convolutional.h"

#include "needle/ops/elementwise.h"
#include "needle/ops/shape.h"

namespace needle {

namespace {

Epilogue epilogue_of(Activation activation) {
  switch (activation) {
    case Activation::relu:
      return Epilogue::relu;
    case Activation::gelu:
      return Epilogue::gelu;
    case Activation::gelu_tanh:
      return Epilogue::gelu_tanh;
    case Activation::gated:
      break;
  }
  fail("model: a convolution has no gated activation; choose relu, gelu or gelu-tanh");
}

/// The last `span` positions [batch, span, width] of x: of each row, those before what pads its end.
NDArray last_real(const NDArray& x, std::int64_t span, const NDArray& real) {
  const std::int64_t batch = x.size(0), time = x.size(1);
  if (!real.defined()) return x.slice(1, time - span, time).copy();
  const std::vector<bool> is_real = real.to_vector<bool>();
  NDArray result = NDArray::empty({batch, span, x.size(2)}, x.dtype(), x.device());
  for (std::int64_t row = 0; row < batch; ++row) {
    std::int64_t padding = 0;
    while (padding < real.size(1) &&
           !is_real[static_cast<std::size_t>((row + 1) * real.size(1) - 1 - padding)])
      ++padding;
    // What holds no real token at all changes nothing: then those from before stay.
    result.slice(0, row, row + 1)
        .assign(x.slice(0, row, row + 1).slice(1, time - padding - span, time - padding));
  }
  return result;
}

}  // namespace

ConvolutionBlock::ConvolutionBlock(const ModelConfig& config, std::int64_t layer, const Init& init)
    : norm(config.norm, config.width, config.bias, init, config.norm_epsilon),
      convolution(config.width, config.width, config.kernel, config.dilation(layer), config.bias, init),
      activation(epilogue_of(config.activation)),
      dropout(config.dropout) {}

Tensor ConvolutionBlock::forward(const Tensor& x, NDArray* before, const NDArray& real,
                                 const Pass& pass) const {
  const Scope scope(*this);
  Tensor inputs = norm.forward(x, convolution.weight.dtype());
  // Padding must look like the zeros before the start.
  if (real.defined()) inputs = inputs * Tensor(real.cast(inputs.dtype()).reshape({x.size(0), x.size(1), 1}));
  const bool adds_itself = !before && x.dtype() == inputs.dtype() && !(pass.training && dropout.p > 0);
  if (adds_itself) return convolution.forward(inputs, activation, x);
  const std::int64_t span = before ? before->size(1) : 0;
  if (before) {
    inputs = concatenate({Tensor(*before), inputs}, 1);
    *before = last_real(inputs.array(), span, real);
  }
  const Tensor all = convolution.forward(inputs, activation);
  return dropout.forward(cast(slice(all, 1, span, all.size(1)), x.dtype()), pass, x);
}

void ConvolutionBlock::list(Parts& parts) {
  parts("norm", norm);
  parts("convolution", convolution);
}

ConvolutionalModel::ConvolutionalModel(const ModelConfig& config, Generator& random, Device device,
                                       DType dtype)
    : ConvolutionalModel(fitting(config, device, dtype), init_of(config, random, device, dtype)) {}

ConvolutionalModel::ConvolutionalModel(const ModelConfig& config, const Init& init)
    : TokenModel(config, init), norm_(config.norm, config.width, config.bias, init, config.norm_epsilon) {
  for (std::int64_t layer = 0; layer < config.layers; ++layer) blocks_.emplace_back(config, layer, init);
  make_head(init);
  state();  // so that every part knows its path
}

Tensor ConvolutionalModel::states(const Tensor& embedded, const SequenceInput& input, const Pass& pass) {
  Tensor x = embedded;
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    NDArray* before = nullptr;
    if (pass.past) {
      std::vector<NDArray>& kept = pass.past->kept(static_cast<int>(layer));
      const std::int64_t span = (config_.kernel - 1) * config_.dilation(static_cast<std::int64_t>(layer));
      const NDArray& table = token_embedding_.weight.array();
      if (kept.empty())
        kept.push_back(NDArray::zeros({x.size(0), span, config_.width}, table.dtype(), table.device()));
      before = &kept[0];
    }
    x = blocks_[layer].forward(x, before, input.real, pass);
  }
  return norm_.forward(x);
}

Cache ConvolutionalModel::empty_state(std::int64_t batch, std::int64_t, std::optional<DType>) {
  return Cache(static_cast<int>(config_.layers), batch, token_embedding_.weight.array().device());
}

void ConvolutionalModel::list(Parts& parts) {
  parts("token_embedding", token_embedding_);
  parts("blocks", blocks_);
  parts("norm", norm_);
  if (head_) parts("head", *head_);
}

}  // namespace needle
