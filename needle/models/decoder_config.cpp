// Settings of a decoder as JSON; the names of all choices, for the command line too.
#include <nlohmann/json.hpp>

#include "needle/models/decoder.h"
#include "needle/models/names_of_choices.h"

namespace needle {

namespace {

/// Visits every saved setting by its name; the one list that reading and writing share.
template <class Config, class F>
void each_setting(Config& config, F&& visit) {
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

}  // namespace

void to_json(nlohmann::json& json, const DecoderConfig& config) {
  json = nlohmann::json::object();
  each_setting(config, [&](const char* name, const auto& value) {
    if constexpr (std::is_enum_v<std::decay_t<decltype(value)>>)
      json[name] = name_of_choice(value);
    else
      json[name] = value;
  });
}

void from_json(const nlohmann::json& json, DecoderConfig& config) {
  require(json.is_object(), "decoder settings: wants an object");
  std::size_t read = 0;
  each_setting(config, [&](const char* name, auto& value) {
    const auto found = json.find(name);
    require(found != json.end(), "decoder settings: '", name, "' is missing");
    using Value = std::decay_t<decltype(value)>;
    try {
      if constexpr (std::is_enum_v<Value>)
        value = choice_of_name<Value>(found->template get<std::string>());
      else
        value = found->template get<Value>();
    } catch (const nlohmann::json::exception&) {
      fail("decoder settings: '", name, "' has an impossible value: ", found->dump());
    }
    ++read;
  });
  require(read == json.size(), "decoder settings: there are names that are not known in ", json.dump());
  config = config.resolved();
}

}  // namespace needle
