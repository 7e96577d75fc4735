#include "needle/data/tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "backends/error.h"
#include "needle/data/utf8.h"

namespace needle {
namespace {

// Where a character stands in a text, for messages: lines and columns count from 1, columns in characters.
struct Place {
  std::string_view source;
  std::int64_t line, column = 1;

  void pass(std::int32_t code_point) {
    if (code_point == '\n') {
      ++line;
      column = 1;
    } else {
      ++column;
    }
  }
  std::string to_string() const {
    const std::string file = source.empty() ? "" : std::string(source) + ", ";
    return file + "line " + std::to_string(line) + ", column " + std::to_string(column);
  }
};

std::string hexadecimal(std::uint32_t value, int digits) {
  std::string text;
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4)
    text += "0123456789ABCDEF"[(value >> shift) & 0xF];
  return text;
}

std::string show_character(std::int32_t code_point) {
  const auto code = static_cast<std::uint32_t>(code_point);
  const bool printable = code >= 0x20 && (code < 0x7F || code > 0x9F);
  std::ostringstream text;
  if (printable) text << '\'' << write_utf8(code_point) << "' ";
  text << "(U+" << hexadecimal(code, code > 0xFFFF ? 6 : 4) << ')';
  return text.str();
}

// Calls use(code_point, place) for each character; throws where the text isn't UTF-8.
template <class Use>
void for_each_character(std::string_view text, Place place, const Use& use) {
  while (!text.empty()) {
    const Utf8Character next = read_utf8(text);
    if (next.kind != Utf8Character::Kind::whole) {
      fail("tokenizer: not UTF-8 at ", place.to_string(), ": byte 0x",
           hexadecimal(static_cast<unsigned char>(text[0]), 2),
           "; character tokens need UTF-8 text, byte tokens take any");
    }
    use(next.code_point, place);
    place.pass(next.code_point);
    text.remove_prefix(next.length);
  }
}

}  // namespace

Tokenizer Tokenizer::bytes() { return Tokenizer(Kind::bytes, {}); }

Tokenizer Tokenizer::characters(std::string_view training_text, std::string_view source) {
  std::set<std::int32_t> seen;
  for_each_character(training_text, {source, 1},
                     [&](std::int32_t code_point, const Place&) { seen.insert(code_point); });
  return Tokenizer(Kind::characters, {seen.begin(), seen.end()});
}

Tokenizer Tokenizer::byte_pair(BytePair vocabulary, std::optional<std::int64_t> begin,
                               std::optional<std::int64_t> end) {
  Tokenizer result(Kind::byte_pair, {});
  result.pairs_ = std::make_shared<const BytePair>(std::move(vocabulary));
  result.set_ends(begin, end);
  return result;
}

Tokenizer Tokenizer::ids(std::int64_t count, std::string reason, std::optional<std::int64_t> begin,
                         std::optional<std::int64_t> end) {
  require(count > 0, "tokenizer: wanted a positive number of ids, got ", count);
  Tokenizer result(Kind::ids, {});
  result.count_ = count;
  result.no_text_ = std::move(reason);
  result.set_ends(begin, end);
  return result;
}

void Tokenizer::set_ends(std::optional<std::int64_t> begin, std::optional<std::int64_t> end) {
  for (const auto& id : {begin, end})
    require(!id || (*id >= 0 && *id < vocabulary_size()), "tokenizer: a row begins or ends with ",
            id.value_or(0), ", which is outside the vocabulary of ", vocabulary_size());
  begin_ = begin ? begin : end;
  end_ = end;
}

Tokenizer::Kind Tokenizer::kind_from_name(std::string_view name) {
  if (name == "bytes") return Kind::bytes;
  require(name == "characters", "tokenizer: wanted bytes or characters, got '", name, "'");
  return Kind::characters;
}

std::int64_t Tokenizer::vocabulary_size() const {
  if (pairs_) return pairs_->vocabulary_size();
  if (kind_ == Kind::ids) return count_;
  return kFirstContentId + (kind_ == Kind::bytes ? 256 : static_cast<std::int64_t>(characters_.size()));
}

std::optional<std::int64_t> Tokenizer::text_begin() const {
  return pairs_ ? pairs_->text_begin() : std::nullopt;
}

std::optional<std::string> Tokenizer::special_name(std::int64_t id) const {
  if (pairs_) return pairs_->is_special(id) ? std::optional(pairs_->bytes_of(id)) : std::nullopt;
  constexpr const char* kNames[] = {"PAD", "BOS", "EOS"};
  if (kind_ == Kind::ids || id < 0 || id >= kFirstContentId) return std::nullopt;
  return kNames[id];
}

std::vector<std::int64_t> Tokenizer::encode(std::string_view text, std::string_view source,
                                            std::int64_t first_line) const {
  require(kind_ != Kind::ids, no_text_);
  if (pairs_) return pairs_->encode(text);
  std::vector<std::int64_t> ids;
  ids.reserve(text.size());
  if (kind_ == Kind::bytes) {
    for (const char byte : text) ids.push_back(kFirstContentId + static_cast<unsigned char>(byte));
    return ids;
  }
  for_each_character(text, {source, first_line}, [&](std::int32_t code_point, const Place& place) {
    const auto found = std::lower_bound(characters_.begin(), characters_.end(), code_point);
    if (found == characters_.end() || *found != code_point) {
      fail("tokenizer: the character ", show_character(code_point), " at ", place.to_string(),
           " is not among the ", characters_.size(), " characters of this vocabulary");
    }
    ids.push_back(kFirstContentId + (found - characters_.begin()));
  });
  return ids;
}

bool Tokenizer::knows(std::string_view character) const {
  require(kind_ != Kind::ids, no_text_);
  if (pairs_) return pairs_->knows(character);
  if (kind_ == Kind::bytes) return true;
  const Utf8Character first = read_utf8(character);
  return first.kind == Utf8Character::Kind::whole && first.length == character.size() &&
         std::binary_search(characters_.begin(), characters_.end(), first.code_point);
}

std::string Tokenizer::decode_bytes(std::span<const std::int64_t> ids) const {
  require(kind_ != Kind::ids, no_text_);
  std::string text;
  for (const std::int64_t id : ids) {
    if (pairs_) {
      text += pairs_->bytes_of(id);
      continue;
    }
    require(id >= 0 && id < vocabulary_size(), "tokenizer: id ", id, " is outside the vocabulary of ",
            vocabulary_size());
    if (id < kFirstContentId) continue;
    const std::int64_t content = id - kFirstContentId;
    if (kind_ == Kind::bytes) {
      text += static_cast<char>(content);
    } else {
      text += write_utf8(characters_[static_cast<std::size_t>(content)]);
    }
  }
  return text;
}

std::string Tokenizer::decode(std::span<const std::int64_t> ids) const {
  return repair_utf8(decode_bytes(ids));
}

nlohmann::json Tokenizer::to_json() const {
  if (kind_ == Kind::bytes) return {{"kind", "bytes"}};
  if (pairs_ || kind_ == Kind::ids) {
    nlohmann::json json = pairs_ ? nlohmann::json{{"kind", "byte-pair"}, {"tokenizer", pairs_->to_json()}}
                                 : nlohmann::json{{"kind", "ids"}, {"count", count_}, {"reason", no_text_}};
    json["begin"] = begin_ ? nlohmann::json(*begin_) : nlohmann::json();
    json["end"] = end_ ? nlohmann::json(*end_) : nlohmann::json();
    return json;
  }
  std::string text;
  for (const std::int32_t code_point : characters_) text += write_utf8(code_point);
  return {{"kind", "characters"}, {"characters", text}};
}

Tokenizer Tokenizer::from_json(const nlohmann::json& json) {
  const auto text_of = [&json](const char* name) {
    require(json.is_object() && json.contains(name) && json[name].is_string(), "tokenizer: no text '", name,
            "' in its JSON");
    return json[name].get<std::string>();
  };
  const auto id_of = [&json](const char* name) -> std::optional<std::int64_t> {
    const nlohmann::json value = json.value(name, nlohmann::json());
    require(value.is_null() || value.is_number_integer(), "tokenizer: '", name, "' in its JSON wants an id");
    return value.is_null() ? std::nullopt : std::optional(value.get<std::int64_t>());
  };
  const std::string kind = text_of("kind");
  if (kind == "ids") return ids(id_of("count").value_or(0), text_of("reason"), id_of("begin"), id_of("end"));
  if (kind == "byte-pair") {
    require(json.contains("tokenizer"), "tokenizer: no 'tokenizer' in its JSON");
    return byte_pair(BytePair::from_json(json["tokenizer"]), id_of("begin"), id_of("end"));
  }
  if (kind_from_name(kind) == Kind::bytes) return bytes();
  const std::string text = text_of("characters");
  Tokenizer tokenizer = characters(text, "the tokenizer's JSON");
  require(tokenizer.to_json()["characters"] == text,
          "tokenizer: the characters in its JSON are not in the order of their code points, each once");
  return tokenizer;
}

bool Tokenizer::operator==(const Tokenizer& other) const {
  if (kind_ != other.kind_ || characters_ != other.characters_) return false;
  return (pairs_ && pairs_ == other.pairs_ && begin_ == other.begin_ && end_ == other.end_) ||
         to_json() == other.to_json();
}

std::string StreamingDecoder::push(std::int64_t id) {
  held_back_ += tokenizer_.decode_bytes({&id, 1});
  // Only a cut-off character at the very end can still become whole.
  std::size_t ready = 0;
  while (ready < held_back_.size()) {
    const Utf8Character next = read_utf8(std::string_view(held_back_).substr(ready));
    if (next.kind == Utf8Character::Kind::cut_off) break;
    ready += next.length;
  }
  const std::string text = repair_utf8(std::string_view(held_back_).substr(0, ready));
  held_back_.erase(0, ready);
  return text;
}

std::string StreamingDecoder::finish() { return repair_utf8(std::exchange(held_back_, {})); }

}  // namespace needle
