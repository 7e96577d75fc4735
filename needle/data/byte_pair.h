// Byte-level byte-pair tokens (Sennrich et al. 2016, Radford et al. 2019): text is cut into words by
// patterns, and the bytes of a word are merged, the most frequent pairs of the training text first.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "needle/data/split_pattern.h"

namespace needle {

/// The pattern of GPT-2, which "ByteLevel" stands for.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// The vocabulary of a `tokenizer.json`, the file of the Python package "tokenizers", whose ids it gives.
class BytePair {
 public:
  /// Reads the JSON of such a file. Throws, naming it, on whatever would give other ids than the package's.
  static BytePair from_json(const nlohmann::json& json);
  /// The same JSON, without what is of no use.
  nlohmann::json to_json() const;

  /// The largest id and one; ids in between may stand for nothing.
  std::int64_t vocabulary_size() const { return static_cast<std::int64_t>(tokens_.size()); }
  /// The ids of any bytes; an added token that occurs in them becomes its id. Throws on a byte that the
  /// vocabulary lacks.
  std::vector<std::int64_t> encode(std::string_view text) const;
  /// The bytes of a token, none for an id that stands for nothing. Throws on an id outside the vocabulary.
  const std::string& bytes_of(std::int64_t id) const;
  /// The id of the token with this spelling in the file.
  std::optional<std::int64_t> find(std::string_view spelling) const;
  /// Whether it is an added token marked as special, as those that begin and end texts are.
  bool is_special(std::int64_t id) const;
  /// Whether every one of these bytes has an id.
  bool knows(std::string_view bytes) const;
  /// The token that the file wants before every text, if any.
  std::optional<std::int64_t> text_begin() const { return text_begin_; }

 private:
  struct Added {
    std::int64_t id;
    std::string content;
    bool special;
  };
  /// One step of cutting: by a pattern, or, without one, a space before what begins with none.
  using Step = std::optional<SplitPattern>;
  struct Merge {
    std::int32_t rank, result;
  };
  using Ids = std::vector<std::int32_t>;
  using Words = std::unordered_map<std::string, Ids>;  // that were merged before

  void read_vocabulary(const nlohmann::json& model);
  void read_merges(const nlohmann::json& merges);
  void read_added(const nlohmann::json& list);
  void read_steps(const nlohmann::json& step);
  void read_text_begin(const nlohmann::json& processor);
  void encode_words(std::string_view text, std::size_t step, Words& seen,
                    std::vector<std::int64_t>& ids) const;
  Ids merged(std::string_view word) const;

  std::vector<std::string> spellings_, tokens_;        // by id; a token as bytes
  std::unordered_map<std::string, std::int32_t> ids_;  // of spellings
  std::array<std::int32_t, 256> byte_ids_{};
  std::vector<std::pair<std::int32_t, std::int32_t>> merge_order_;
  std::unordered_map<std::uint64_t, Merge> merges_;  // by both ids
  bool whole_words_first_ = false;                   // a word that is a token needs no merges
  std::vector<Added> added_;
  std::vector<Step> steps_;
  std::optional<std::int64_t> text_begin_;
  std::string pre_tokenizer_, post_processor_;  // as JSON
};

}  // namespace needle
