#include "needle/io/tokenizer_files.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "backends/error.h"
#include "needle/io/files.h"

namespace needle {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char *kWhole = "tokenizer.json", *kVocabulary = "vocab.json", *kMerges = "merges.txt",
                     *kConfig = "tokenizer_config.json", *kSpecial = "special_tokens_map.json";

json json_file(const fs::path& file) { return parse_json(read_file(file), file.string()); }

/// What a file of settings says of the token `name`: its text, which may stand in an object.
std::optional<std::string> named_token(const json& settings, const std::string& name) {
  json found = settings.is_object() ? settings.value(name, json()) : json();
  if (found.is_object()) found = found.value("content", json());
  return found.is_string() ? std::optional(found.get<std::string>()) : std::nullopt;
}

/// vocab.json and merges.txt, GPT-2's files, in the form of a tokenizer.json.
json whole_of_parts(const fs::path& folder, const json& settings) {
  json vocabulary = json_file(folder / kVocabulary), merges = json::array(), added = json::array();
  std::istringstream lines(read_file(folder / kMerges));
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty() && !line.starts_with("#version")) merges.push_back(line);
  }
  // They do not say which tokens are special: GPT-2's own is, and those that the settings name.
  std::vector<std::string> specials{"<|endoftext|>"};
  const json map = fs::exists(folder / kSpecial) ? json_file(folder / kSpecial) : json();
  for (const char* name : {"bos_token", "eos_token", "unk_token", "pad_token"}) {
    for (const json& source : {settings, map}) {
      if (const auto token = named_token(source, name)) specials.push_back(*token);
    }
  }
  for (const std::string& token : specials) {
    const bool known = vocabulary.is_object() && vocabulary.contains(token);
    if (known) added.push_back({{"id", vocabulary[token]}, {"content", token}, {"special", true}});
  }
  const bool space = settings.is_object() && settings.value("add_prefix_space", json(false)) == true;
  return {{"added_tokens", added},
          {"pre_tokenizer",
           {{"type", "ByteLevel"}, {"add_prefix_space", space}, {"trim_offsets", true}, {"use_regex", true}}},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}}};
}

}  // namespace

Tokenizer read_tokenizer(const fs::path& folder, std::int64_t vocabulary, std::optional<std::int64_t> begin,
                         std::optional<std::int64_t> end) {
  const bool whole = fs::exists(folder / kWhole),
             parts = fs::exists(folder / kVocabulary) && fs::exists(folder / kMerges);
  if (!whole && !parts)
    return Tokenizer::ids(vocabulary,
                          folder.string() +
                              ": there is no tokenizer.json, nor vocab.json and merges.txt, so "
                              "the model reads ids alone, no text; put them there",
                          begin, end);
  try {
    const json settings = fs::exists(folder / kConfig) ? json_file(folder / kConfig) : json();
    BytePair pairs =
        BytePair::from_json(whole ? json_file(folder / kWhole) : whole_of_parts(folder, settings));
    const auto id_of = [&](const char* name, std::optional<std::int64_t> otherwise) {
      const auto token = named_token(settings, name);
      const auto id = token ? pairs.find(*token) : std::nullopt;
      return id ? id : otherwise;
    };
    const auto its_begin = id_of("bos_token", begin), its_end = id_of("eos_token", end);
    return Tokenizer::byte_pair(std::move(pairs), its_begin, its_end);
  } catch (const Error& error) {
    const std::string file = (folder / (whole ? kWhole : kVocabulary)).string();
    return Tokenizer::ids(vocabulary,
                          file + " can't be used, so the model reads ids alone, no text: " + error.what());
  }
}

bool write_tokenizer(const fs::path& folder, const Tokenizer& tokenizer) {
  if (tokenizer.byte_pairs() == nullptr) return false;
  write_file_synced(folder / kWhole, tokenizer.byte_pairs()->to_json().dump(1) + "\n");
  return true;
}

}  // namespace needle
