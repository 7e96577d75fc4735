#include "needle/models/decoder.h"

namespace needle {

Decoder::Decoder(const ModelConfig& config, Generator& random, Device device, DType dtype)
    : Decoder(fitting(config, device, dtype), init_of(config, random, device, dtype)) {}

Decoder::Decoder(const ModelConfig& config, const Init& init)
    : TokenModel(config, init), transformer_(config, init) {
  make_head(init);
  state();  // so that every part knows its path
}

Tensor Decoder::embed(const SequenceInput& input, const Pass& pass) {
  return transformer_.begin(tokens(input, pass), input, pass);
}

Tensor Decoder::states(const Tensor& embedded, const SequenceInput& input, const Pass& pass) {
  return transformer_.states(embedded, input, pass);
}

Tensor Decoder::states(const Tensor& embedded, const SequenceInput& input, const Pass& pass,
                       const Tensor& memory) {
  return transformer_.states(embedded, input, pass, memory);
}

Cache Decoder::empty_state(std::int64_t batch, std::int64_t longest, std::optional<DType> storage) {
  return transformer_.empty_state(batch, longest, storage);
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
