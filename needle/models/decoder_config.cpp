// Settings of a decoder as JSON.
#include "needle/models/decoder.h"
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
}

const auto each_decoder_setting = [](auto& config, const auto& visit) { each_setting(config, visit); };

}  // namespace

void to_json(nlohmann::json& json, const DecoderConfig& config) {
  json = settings_to_json(config, each_decoder_setting);
}

void from_json(const nlohmann::json& json, DecoderConfig& config) {
  settings_from_json("decoder settings", json, config, each_decoder_setting);
  config = config.resolved();
}

}  // namespace needle
