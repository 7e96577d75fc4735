// A classifier of things that come as patches: images cut into squares (Dosovitskiy et al. 2021).
#pragma once

#include "needle/models/model_init.h"
#include "needle/models/transformer.h"

namespace needle {

/// An encoder of input.features [batch, time, features], each position mapped linearly. Position 0 is the
/// class token: what stands there is replaced by a learned vector, and its label is the class
/// (vocabulary_size() of them); time is 1 + patches.
class Patches : public SequenceModel {
 public:
  Patches(const ModelConfig& config, Generator& random, Device device = cpu(), DType dtype = DType::f32);

  const ModelConfig& config() const override { return config_; }
  Tensor embed(const SequenceInput& input, const Pass& pass) override;
  Tensor states(const Tensor& embedded, const SequenceInput& input, const Pass& pass) override;
  Tensor head(const Tensor& states) override;
  /// An Error: it reads both ways.
  Cache empty_state(std::int64_t batch, std::int64_t longest, std::optional<DType> storage = {}) override;
  std::int64_t context() const override { return config_.context; }
  void list(Parts& parts) override;

 private:
  Patches(const ModelConfig& config, const Init& init);

  ModelConfig config_;
  Linear patch_map_;
  Embedding class_embedding_;
  Transformer transformer_;
  Linear head_;
};

}  // namespace needle
