#include "needle/models/encoder_decoder.h"

namespace needle {

ModelConfig EncoderDecoder::encoder_config(const ModelConfig& config) {
  ModelConfig encoder = config;
  encoder.kind = ModelKind::encoder;
  encoder.tied = true;  // it has no head of its own
  encoder.window = 0;   // which looks back alone
  return encoder;
}

ModelConfig EncoderDecoder::decoder_config(const ModelConfig& config) {
  ModelConfig decoder = config;
  decoder.kind = ModelKind::decoder;
  decoder.cross = true;
  return decoder;
}

namespace {

/// position_ids() of the source without asking the host, which a device that runs ahead would wait for.
NDArray source_positions(const SequenceInput& input) {
  const Shape& shape = input.source_ids.shape();
  if (!input.source_real.defined())
    return NDArray::arange(shape[1], DType::i64, input.source_ids.device()).broadcast_to(shape).copy();
  const NoGrad off;
  const Tensor seen = cumulative_sum(Tensor(input.source_real.cast(DType::f32)), 1);
  return relu(seen - 1.0).array().cast(DType::i64);
}

}  // namespace

EncoderDecoder::EncoderDecoder(const ModelConfig& config, Generator& random, Device device, DType dtype)
    : config_(config.resolved()),
      encoder_(encoder_config(config), random, device, dtype),
      decoder_(decoder_config(config), random, device, dtype) {
  state();  // so that every part knows its path
}

Tensor EncoderDecoder::memory(const SequenceInput& input, const Pass& pass) {
  require(input.source_ids.defined() && input.source_ids.rank() == 2,
          "encoder-decoder: wants source_ids [batch, source time]");
  require(!input.source_real.defined() || input.source_real.shape() == input.source_ids.shape(),
          "encoder-decoder: the source's mask must be ", input.source_ids.shape(), ", got ",
          input.source_real.shape());
  const std::int64_t time = input.source_ids.size(1);
  require(input.source_real.defined() || config_.positions == Positions::rotary || time <= config_.context,
          "encoder-decoder: a source of ", time, " tokens is past the context of ", config_.context);
  const SequenceInput source{input.source_ids, input.source_real, source_positions(input)};
  const Pass without_past{pass.training, pass.random};
  return encoder_.states(encoder_.embed(source, without_past), source, without_past);
}

Tensor EncoderDecoder::embed(const SequenceInput& input, const Pass& pass) {
  return decoder_.embed(input, pass);
}

Tensor EncoderDecoder::states(const Tensor& embedded, const SequenceInput& input, const Pass& pass) {
  const bool known = pass.past && !pass.past->kept(0).empty();
  return decoder_.states(embedded, input, pass, known ? Tensor() : memory(input, pass));
}

Tensor EncoderDecoder::head(const Tensor& states) { return decoder_.head(states); }

Tensor EncoderDecoder::head_loss(const Tensor& states, const NDArray& labels, const LossOptions& options) {
  return decoder_.head_loss(states, labels, options);
}

Cache EncoderDecoder::empty_state(std::int64_t batch, std::int64_t longest, std::optional<DType> storage) {
  return decoder_.empty_state(batch, longest, storage);
}

void EncoderDecoder::list(Parts& parts) {
  parts("encoder", encoder_);
  parts("decoder", decoder_);
}

}  // namespace needle
