// Text to token ids and back: bytes or characters, with PAD, BOS and EOS as ids of their own, or the byte
// pairs of a published vocabulary.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "needle/data/byte_pair.h"

namespace needle {

/// The ids that stand for no text. They come first in every vocabulary of ours, so that text never encodes to
/// them; a published one has others, or none (begin_id(), end_id()).
inline constexpr std::int64_t kPadId = 0;
inline constexpr std::int64_t kBeginId = 1;
inline constexpr std::int64_t kEndId = 2;
inline constexpr std::int64_t kFirstContentId = 3;

/// A vocabulary as a value. In ours, ids 0, 1, 2 are PAD, BOS, EOS; then come 256 bytes, or the known
/// characters in the order of their code points. Byte pairs have the ids that were published; `ids` stands
/// for a vocabulary that is not there, so that only ids can be read and told.
class Tokenizer {
 public:
  enum class Kind { bytes, characters, byte_pair, ids };

  /// Any text is known: id 3 + byte.
  static Tokenizer bytes();
  /// The Unicode characters that occur in `training_text`; `source`, a file name, stands in errors. Throws,
  /// with line and column, where the text isn't UTF-8.
  static Tokenizer characters(std::string_view training_text, std::string_view source = "");
  /// Byte pairs, and which of their ids begins and ends a row; where none begins one, that which ends it
  /// does.
  static Tokenizer byte_pair(BytePair vocabulary, std::optional<std::int64_t> begin,
                             std::optional<std::int64_t> end);
  /// No vocabulary for `count` ids; `reason` is the Error of whoever asks for text. `begin` and `end` as
  /// those of byte pairs.
  static Tokenizer ids(std::int64_t count, std::string reason, std::optional<std::int64_t> begin = {},
                       std::optional<std::int64_t> end = {});
  /// The kind by its name, "bytes" or "characters"; throws on another.
  static Kind kind_from_name(std::string_view name);

  Kind kind() const { return kind_; }
  /// Number of ids, special ones included.
  std::int64_t vocabulary_size() const;
  /// The id that begins a row, and the one that ends it, if there is one.
  std::optional<std::int64_t> begin_id() const { return begin_; }
  std::optional<std::int64_t> end_id() const { return end_; }
  /// The id that a published vocabulary wants before every text, if any.
  std::optional<std::int64_t> text_begin() const;
  /// The name of an id that stands for no text, "BOS" or "<|endoftext|>"; none for the others.
  std::optional<std::string> special_name(std::int64_t id) const;
  /// The byte pairs; null for other kinds.
  const BytePair* byte_pairs() const { return pairs_.get(); }

  /// The ids of `text`, without BOS and EOS. Throws on a character outside the vocabulary, showing it with
  /// its line and column and `source`, the name of the text's file; `first_line` is the number of its first
  /// line. In byte pairs, names of special tokens become their ids.
  std::vector<std::int64_t> encode(std::string_view text, std::string_view source = "",
                                   std::int64_t first_line = 1) const;
  /// Whether `text`, one whole character, has an id.
  bool knows(std::string_view character) const;
  /// The bytes that `ids` stand for; PAD, BOS and EOS of ours stand for none, special byte pairs for their
  /// names. Throws on an id outside the vocabulary.
  std::string decode_bytes(std::span<const std::int64_t> ids) const;
  /// As decode_bytes, as valid UTF-8: what isn't becomes U+FFFD, one for each maximal invalid part.
  std::string decode(std::span<const std::int64_t> ids) const;

  /// {"kind": "bytes"}, {"kind": "characters", "characters": "..."}, {"kind": "byte-pair", "begin": 0, "end":
  /// 0, "tokenizer": ...} as BytePair::to_json(), or {"kind": "ids", "count": 0, "reason": "...", "begin": 0,
  /// "end": 0}.
  nlohmann::json to_json() const;
  /// The inverse of to_json; throws on anything else.
  static Tokenizer from_json(const nlohmann::json& json);

  bool operator==(const Tokenizer& other) const;

 private:
  Tokenizer(Kind kind, std::vector<std::int32_t> characters)
      : kind_(kind), characters_(std::move(characters)) {}
  void set_ends(std::optional<std::int64_t> begin, std::optional<std::int64_t> end);

  Kind kind_;
  std::vector<std::int32_t> characters_;  // sorted code points; id 3 + index
  std::optional<std::int64_t> begin_ = kBeginId, end_ = kEndId;
  std::shared_ptr<const BytePair> pairs_;
  std::int64_t count_ = 0;  // of `ids`
  std::string no_text_;     // why there is none
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
