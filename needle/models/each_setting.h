// Settings as JSON: reading and writing from one list of names.
#pragma once

#include <nlohmann/json.hpp>

#include "needle/models/names_of_choices.h"

namespace needle {

/// A JSON value of that type; a fraction is no whole number, and a number no flag.
template <class Value>
Value value_of(const nlohmann::json& json) {
  const bool fits = !std::is_integral_v<Value> || std::is_same_v<Value, bool> || json.is_number_integer();
  require(fits, "wants a whole number");
  return json.get<Value>();
}

/// Writes all settings that `each(config, visit)` visits as (name, value); choices by their names.
template <class Config, class Each>
nlohmann::json settings_to_json(const Config& config, const Each& each) {
  nlohmann::json json = nlohmann::json::object();
  each(config, [&](const char* name, const auto& value) {
    if constexpr (std::is_enum_v<std::decay_t<decltype(value)>>)
      json[name] = name_of_choice(value);
    else
      json[name] = value;
  });
  return json;
}

/// Reads them again. A missing or unknown name or an impossible value is an Error that begins with `what`.
template <class Config, class Each>
void settings_from_json(const char* what, const nlohmann::json& json, Config& config, const Each& each) {
  require(json.is_object(), what, ": wants a JSON object");
  std::size_t read = 0;
  each(config, [&](const char* name, auto& value) {
    using Value = std::decay_t<decltype(value)>;
    const auto found = json.find(name);
    require(found != json.end(), what, ": '", name, "' is missing");
    try {
      if constexpr (std::is_enum_v<Value>)
        value = choice_of_name<Value>(found->template get<std::string>());
      else
        value = value_of<Value>(*found);
    } catch (const std::exception&) {
      fail(what, ": '", name, "' has an impossible value: ", found->dump());
    }
    ++read;
  });
  require(read == json.size(), what, ": there are unknown names in ", json.dump());
}

}  // namespace needle
