#include "needle/models/patches.h"

namespace needle {

Patches::Patches(const ModelConfig& config, Generator& random, Device device, DType dtype)
    : Patches(fitting(config, device, dtype), init_of(config, random, device, dtype)) {}

Patches::Patches(const ModelConfig& config, const Init& init)
    : config_(config),
      patch_map_(config.features, config.width, config.bias, init),
      class_embedding_(1, config.width, init),
      transformer_(config, init),
      head_(config.width, config.vocabulary, config.bias, init) {
  state();  // so that every part knows its path
}

Tensor Patches::embed(const SequenceInput& input, const Pass& pass) {
  const NDArray& features = input.features;
  require(features.defined() && features.rank() == 3 && features.size(1) > 0 &&
              features.size(2) == config_.features,
          "patches: wants features [batch, time, ", config_.features, "]");
  const DType dtype = patch_map_.dtype();
  const NDArray seen = features.slice(1, 1, features.size(1)).cast(dtype);
  const NDArray first = NDArray::zeros({features.size(0), 1}, DType::i64, features.device());
  const Tensor mapped = patch_map_.forward(Tensor(seen), Epilogue::none, {}, dtype);
  return transformer_.begin(concatenate({class_embedding_.forward(first), mapped}, 1), input, pass);
}

Tensor Patches::states(const Tensor& embedded, const SequenceInput& input, const Pass& pass) {
  return transformer_.states(embedded, input, pass);
}

Tensor Patches::head(const Tensor& states) {
  return head_.forward(states, Epilogue::none, {}, head_.dtype());
}

Cache Patches::empty_state(std::int64_t batch, std::int64_t longest, std::optional<DType> storage) {
  return transformer_.empty_state(batch, longest, storage);
}

void Patches::list(Parts& parts) {
  parts("patch_map", patch_map_);
  parts("class_embedding", class_embedding_);
  transformer_.list(parts);
  parts("head", head_);
}

}  // namespace needle
