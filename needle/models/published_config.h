// The config.json of published checkpoints, as settings of a decoder and back.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "needle/models/model_config.h"

namespace needle {

/// The file of a published checkpoint that says what its model is.
inline constexpr const char* kConfigFile = "config.json";

/// Whose names a published checkpoint has.
enum class PublishedNames { gpt2, llama };

/// What a config.json says.
struct PublishedConfig {
  PublishedNames names = PublishedNames::gpt2;
  ModelConfig model;
  std::optional<std::int64_t> begin, end;  ///< ids of the tokens that begin and end a text
  std::vector<std::string> warnings;       ///< one for each field that nobody here knows
};

/// Whether `folder` holds a published checkpoint rather than one of ours.
bool is_published(const std::filesystem::path& folder);
/// Reads the config.json of `folder`. A field that changes what is computed, in a way that we do not honour,
/// is an Error that names it.
PublishedConfig read_published_config(const std::filesystem::path& folder);
/// The names that such a model can be published in. An Error lists the settings that have no place in either.
PublishedNames published_names_of(const ModelConfig& model);
/// The config.json of a model, for which published_names_of() has names.
nlohmann::json published_config(const ModelConfig& model, std::optional<std::int64_t> begin,
                                std::optional<std::int64_t> end);

}  // namespace needle
