// Text to token ids and back: bytes or characters, with PAD, BOS and EOS as ids of their own.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace needle {

/// The ids that stand for no text. They come first in every vocabulary, so that text never encodes to them.
inline constexpr std::int64_t kPadId = 0;
inline constexpr std::int64_t kBeginId = 1;
inline constexpr std::int64_t kEndId = 2;
inline constexpr std::int64_t kFirstContentId = 3;

/// A vocabulary as a value. Ids 0, 1, 2 are PAD, BOS, EOS; then come 256 bytes, or the known characters in
/// the order of their code points.
class Tokenizer {
 public:
  enum class Kind { bytes, characters };

  /// Any text is known: id 3 + byte.
  static Tokenizer bytes();
  /// The Unicode characters that occur in `training_text`; `source`, a file name, stands in errors. Throws,
  /// with line and column, where the text isn't UTF-8.
  static Tokenizer characters(std::string_view training_text, std::string_view source = "");
  /// The kind by its name, "bytes" or "characters"; throws on another.
  static Kind kind_from_name(std::string_view name);

  Kind kind() const { return kind_; }
  /// Number of ids, the three special ones included.
  std::int64_t vocabulary_size() const;

  /// The ids of `text`, without BOS and EOS. Throws on a character outside the vocabulary, showing it with
  /// its line and column and `source`, the name of the text's file; `first_line` is the number of its first
  /// line.
  std::vector<std::int64_t> encode(std::string_view text, std::string_view source = "",
                                   std::int64_t first_line = 1) const;
  /// Whether `text`, one whole character, has an id.
  bool knows(std::string_view character) const;
  /// The bytes that `ids` stand for; PAD, BOS and EOS stand for none. Throws on an id outside the vocabulary.
  std::string decode_bytes(std::span<const std::int64_t> ids) const;
  /// As decode_bytes, as valid UTF-8: what isn't becomes U+FFFD, one for each maximal invalid part.
  std::string decode(std::span<const std::int64_t> ids) const;

  /// {"kind": "bytes"} or {"kind": "characters", "characters": "..."}.
  nlohmann::json to_json() const;
  /// The inverse of to_json; throws on anything else.
  static Tokenizer from_json(const nlohmann::json& json);

  bool operator==(const Tokenizer&) const = default;

 private:
  Tokenizer(Kind kind, std::vector<std::int32_t> characters)
      : kind_(kind), characters_(std::move(characters)) {}

  Kind kind_;
  std::vector<std::int32_t> characters_;  // sorted code points; id 3 + index
};

/// Decodes a stream of ids into text that can be shown at once: bytes are held back until their character
/// is whole.
class StreamingDecoder {
 public:
  explicit StreamingDecoder(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}

  /// The text that `id` completes, often one character, sometimes none.
  std::string push(std::int64_t id);
  /// Ends the stream: U+FFFD for a character that was never completed, else nothing.
  std::string finish();

 private:
  Tokenizer tokenizer_;
  std::string held_back_;
};

}  // namespace needle
