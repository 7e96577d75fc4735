// Settings of models: what they mean, and as JSON.
#include <algorithm>

#include "needle/models/each_setting.h"

namespace needle {

namespace {

/// Visits every saved setting by its name; the one list that reading and writing share.
template <class Config, class F>
void each_setting(Config& config, const F& visit) {
  visit("vocabulary", config.vocabulary);
  visit("context", config.context);
  visit("width", config.width);
  visit("layers", config.layers);
  visit("heads", config.heads);
  visit("key_value_heads", config.key_value_heads);
  visit("ffn", config.ffn);
  visit("activation", config.activation);
  visit("bias", config.bias);
  visit("tied", config.tied);
  visit("norm", config.norm);
  visit("order", config.order);
  visit("norm_epsilon", config.norm_epsilon);
  visit("positions", config.positions);
  visit("rotary_base", config.rotary_base);
  visit("window", config.window);
  visit("soft_cap", config.soft_cap);
  visit("dropout", config.dropout);
  visit("causal", config.causal);
  visit("initialisation", config.initialisation);
  visit("kind", config.kind);
  visit("kernel", config.kernel);
  visit("dilations", config.dilations);
  visit("features", config.features);
}

const auto each_model_setting = [](auto& config, const auto& visit) { each_setting(config, visit); };

}  // namespace

DecoderConfig DecoderConfig::of_size(std::int64_t vocabulary, std::int64_t context, std::int64_t width,
                                     std::int64_t layers, std::int64_t heads) {
  DecoderConfig config;
  config.vocabulary = vocabulary;
  config.context = context;
  config.width = width;
  config.layers = layers;
  config.heads = heads;
  return config;
}

DecoderConfig DecoderConfig::resolved() const {
  const auto positive = [](const char* name, std::int64_t value) {
    require(value > 0, "model: ", name, " must be positive, got ", value);
  };
  positive("vocabulary", vocabulary);
  positive("context", context);
  positive("layers", layers);
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  for (const std::int64_t size : {vocabulary, context, layers})
    require(size < kMost, "model: a size of ", size, " is too large");
  DecoderConfig full = *this;
  static_cast<BlockConfig&>(full) = BlockConfig::resolved();
  return full;
}

std::int64_t DecoderConfig::parameter_count() const {
  return vocabulary * width + (positions == Positions::learned ? context * width : 0) +
         layers * BlockConfig::parameter_count() + (order == NormOrder::pre ? norm_parameter_count() : 0) +
         (tied ? 0 : (width + (bias ? 1 : 0)) * vocabulary);
}

std::int64_t ModelConfig::receptive_field() const {
  if (has_attention()) return window == 0 ? 0 : 1 + layers * (window - 1);
  if (kind != ModelKind::convolution) return 0;
  std::int64_t reach = 1;
  for (std::int64_t layer = 0; layer < layers; ++layer) reach += (kernel - 1) * dilation(layer);
  return reach;
}

std::int64_t ModelConfig::parameter_count() const {
  if (has_attention()) return DecoderConfig::parameter_count();
  const std::int64_t square = width * width, bias_count = bias ? width : 0;
  std::int64_t layer = norm_parameter_count();
  if (is_recurrent()) {
    const std::int64_t gates = kind == ModelKind::rnn ? 1 : kind == ModelKind::gru ? 3 : 4;
    layer += 2 * gates * (square + bias_count);
  } else {
    layer += kernel * square + bias_count;
  }
  return vocabulary * width + layers * layer + norm_parameter_count() +
         (tied ? 0 : (width + (bias ? 1 : 0)) * vocabulary);
}

ModelConfig ModelConfig::resolved() const {
  require(kernel >= 1, "model: kernel must be at least 1, got ", kernel);
  require(!dilations.empty() && *std::min_element(dilations.begin(), dilations.end()) >= 1,
          "model: dilations must be at least 1");
  require(features >= 0, "model: features must not be negative, got ", features);
  ModelConfig result = *this;
  if (kind == ModelKind::encoder || kind == ModelKind::patches) {
    require(window == 0, "model: a window looks back alone, but this model reads both ways");
    result.causal = false;
  }
  require(kind != ModelKind::patches || features > 0,
          "model: patches want features, the numbers of each, got ", features);
  if (!has_attention()) result.heads = 1, result.key_value_heads = 1, result.order = NormOrder::pre;
  static_cast<DecoderConfig&>(result) = result.DecoderConfig::resolved();
  return result;
}

void to_json(nlohmann::json& json, const ModelConfig& config) {
  json = settings_to_json(config, each_model_setting);
}

void from_json(const nlohmann::json& json, ModelConfig& config) {
  nlohmann::json complete = json;
  if (complete.is_object()) {  // decoders of before there were other models
    const nlohmann::json defaults = ModelConfig{};
    for (const char* name : {"kind", "kernel", "dilations", "features"})
      complete.emplace(name, defaults.at(name));
  }
  settings_from_json("model settings", complete, config, each_model_setting);
  config = config.resolved();
}

}  // namespace needle
