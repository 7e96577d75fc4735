#include "needle/data/byte_pair.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <queue>
#include <tuple>

#include "backends/error.h"
#include "needle/data/utf8.h"

namespace needle {
namespace {

using nlohmann::json;

// How files spell bytes: printable ones as Latin-1 characters, the others by characters from U+0100 on.
struct Alphabet {
  std::array<std::string, 256> spelling;
  std::unordered_map<std::int32_t, char> byte;

  Alphabet() {
    std::int32_t next = 0x100;
    for (std::int32_t value = 0; value < 256; ++value) {
      const bool printable =
          (value >= 0x21 && value <= 0x7E) || (value >= 0xA1 && value <= 0xFF && value != 0xAD);
      const std::int32_t character = printable ? value : next++;
      spelling[static_cast<std::size_t>(value)] = write_utf8(character);
      byte[character] = static_cast<char>(value);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet the_one;
  return the_one;
}

std::string spell(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += alphabet().spelling[static_cast<unsigned char>(byte)];
  return text;
}

// The bytes that a spelling stands for: its own where it has another character.
std::string unspell(std::string_view spelling) {
  std::string bytes;
  for (std::string_view left = spelling; !left.empty();) {
    const Utf8Character next = read_utf8(left);
    const auto found = alphabet().byte.find(next.code_point);
    if (found == alphabet().byte.end()) return std::string(spelling);
    bytes += found->second;
    left.remove_prefix(next.length);
  }
  return bytes;
}

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

std::string shown(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

// A field that changes ids, and that must be as if it were not there.
void refuse(const json& object, const char* name, const std::string& where) {
  const auto found = object.find(name);
  const bool neutral = found == object.end() || found->is_null() || *found == false || *found == "" ||
                       *found == 0 || found->empty();
  require(neutral, "tokenizer: ", where, name, " = ", neutral ? "" : shown(*found).substr(0, 80),
          " is not known here, and would give other ids");
}

const json& part_of(const json& object, const char* name) {
  require(object.is_object() && object.contains(name), "tokenizer: there is no '", name, "'");
  return object.at(name);
}

std::string text_of(const json& object, const char* name) {
  const json& value = part_of(object, name);
  require(value.is_string(), "tokenizer: '", name, "' wants a text, got ", shown(value).substr(0, 80));
  return value.get<std::string>();
}

bool flag_of(const json& object, const char* name, bool otherwise) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) return otherwise;
  require(found->is_boolean(), "tokenizer: '", name, "' wants true or false, got ",
          shown(*found).substr(0, 80));
  return found->get<bool>();
}

std::int64_t id_of(const json& value, const std::string& token) {
  constexpr std::int64_t kMost = 1 << 22;
  const std::int64_t id = value.is_number_integer() ? value.get<std::int64_t>() : -1;
  require(id >= 0 && id < kMost, "tokenizer: the id of ", shown(token), " must be a whole number below ",
          kMost, ", got ", shown(value).substr(0, 80));
  return id;
}

}  // namespace

BytePair BytePair::from_json(const json& file) {
  require(file.is_object(), "tokenizer: wants a JSON object");
  const json& model = part_of(file, "model");
  require(model.is_object(), "tokenizer: 'model' wants a JSON object");
  const std::string type = model.value("type", json("BPE")) == "BPE" ? "BPE" : shown(model.at("type"));
  require(type == "BPE", "tokenizer: the model is ", type, ", known is BPE, byte-level");
  const auto normalizer = file.find("normalizer");
  if (normalizer != file.end() && normalizer->is_object() && normalizer->value("type", json()) == "Sequence")
    refuse(*normalizer, "normalizers", "normalizer ");
  else
    refuse(file, "normalizer", "");
  for (const char* name : {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"})
    refuse(model, name, "model ");

  BytePair result;
  const json pre_tokenizer = file.value("pre_tokenizer", json());
  result.pre_tokenizer_ = pre_tokenizer.dump();
  require(result.pre_tokenizer_.find("\"ByteLevel\"") != std::string::npos,
          "tokenizer: its pre_tokenizer is not byte-level: ", result.pre_tokenizer_.substr(0, 80));
  result.read_steps(pre_tokenizer);
  result.whole_words_first_ = flag_of(model, "ignore_merges", false);
  result.read_vocabulary(part_of(model, "vocab"));
  result.read_merges(part_of(model, "merges"));
  result.read_added(file.value("added_tokens", json::array()));
  const json processor = file.value("post_processor", json());
  result.post_processor_ = processor.dump();
  result.read_text_begin(processor);
  return result;
}

void BytePair::read_steps(const json& step) {
  const std::string type = text_of(step, "type");
  if (type == "Sequence") {
    for (const json& inner : part_of(step, "pretokenizers")) read_steps(inner);
  } else if (type == "ByteLevel") {
    if (flag_of(step, "add_prefix_space", true)) steps_.emplace_back();
    if (flag_of(step, "use_regex", true)) steps_.emplace_back(SplitPattern(std::string(kGpt2Pattern)));
  } else if (type == "Digits") {
    steps_.emplace_back(SplitPattern(flag_of(step, "individual_digits", false) ? "\\p{N}" : "\\p{N}+"));
  } else if (type == "Split") {
    const std::string behavior = text_of(step, "behavior");
    require(behavior == "Isolated" && !flag_of(step, "invert", false), "tokenizer: a split with behavior ",
            behavior, flag_of(step, "invert", false) ? ", inverted," : "",
            " is not known here, only Isolated");
    steps_.emplace_back(SplitPattern(text_of(part_of(step, "pattern"), "Regex")));
  } else {
    fail("tokenizer: a pre_tokenizer ", shown(type),
         " is not known here, only Sequence, Split, Digits and ByteLevel");
  }
}

void BytePair::read_vocabulary(const json& vocabulary) {
  require(vocabulary.is_object() && !vocabulary.empty(), "tokenizer: 'vocab' wants a JSON object of ids");
  for (const auto& [spelling, value] : vocabulary.items()) {
    const auto id = static_cast<std::size_t>(id_of(value, spelling));
    if (id >= tokens_.size()) tokens_.resize(id + 1), spellings_.resize(id + 1);
    require(spellings_[id].empty(), "tokenizer: ", shown(spelling), " and ", shown(spellings_[id]),
            " have the same id ", id);
    spellings_[id] = spelling;
    tokens_[id] = unspell(spelling);
    ids_[spelling] = static_cast<std::int32_t>(id);
  }
  for (std::size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    const auto found = ids_.find(alphabet().spelling[byte]);
    byte_ids_[byte] = found == ids_.end() ? -1 : found->second;
  }
}

void BytePair::read_merges(const json& merges) {
  require(merges.is_array(), "tokenizer: 'merges' wants a list");
  for (const json& merge : merges) {
    std::string left, right;
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0], right = merge[1];
    } else {
      const std::string both = merge.is_string() ? merge.get<std::string>() : "";
      const std::size_t space = both.find(' ');
      require(space != std::string::npos, "tokenizer: a merge wants two tokens, got ",
              shown(merge).substr(0, 80));
      left = both.substr(0, space), right = both.substr(space + 1);
    }
    const auto known = [&](const std::string& spelling) {
      const auto found = ids_.find(spelling);
      require(found != ids_.end(), "tokenizer: the merge of ", shown(left), " and ", shown(right), " wants ",
              shown(spelling), ", which is not in the vocabulary");
      return found->second;
    };
    const auto pair = std::pair(known(left), known(right));
    const auto rank = static_cast<std::int32_t>(merge_order_.size());
    merges_[key_of(pair.first, pair.second)] = {rank, known(left + right)};
    merge_order_.push_back(pair);
  }
}

void BytePair::read_added(const json& list) {
  require(list.is_array(), "tokenizer: 'added_tokens' wants a list");
  for (const json& entry : list) {
    const std::string content = text_of(entry, "content");
    if (content.empty()) continue;
    for (const char* name : {"single_word", "lstrip", "rstrip"})
      refuse(entry, name, "added token " + shown(content) + ": ");
    const auto id = static_cast<std::size_t>(id_of(part_of(entry, "id"), content));
    if (id >= tokens_.size()) tokens_.resize(id + 1), spellings_.resize(id + 1);
    require(spellings_[id].empty() || spellings_[id] == content, "tokenizer: ", shown(content), " and ",
            shown(spellings_[id]), " have the same id ", id);
    spellings_[id] = tokens_[id] = content;
    added_.push_back({static_cast<std::int64_t>(id), content, flag_of(entry, "special", false)});
  }
}

void BytePair::read_text_begin(const json& processor) {
  if (!processor.is_object()) return;
  for (const json& inner : processor.value("processors", json::array())) read_text_begin(inner);
  const json single = processor.value("single", json::array());
  if (!single.is_array() || single.empty() || !single[0].is_object() || !single[0].contains("SpecialToken"))
    return;
  text_begin_ = find(text_of(single[0]["SpecialToken"], "id"));
}

json BytePair::to_json() const {
  json vocabulary = json::object(), merges = json::array(), added = json::array();
  for (const auto& [spelling, id] : ids_) vocabulary[spelling] = id;
  const auto spelling = [&](std::int32_t id) { return spellings_[static_cast<std::size_t>(id)]; };
  for (const auto& [left, right] : merge_order_) merges.push_back(spelling(left) + ' ' + spelling(right));
  for (const Added& token : added_) {
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", token.special}});
  }
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", json::parse(pre_tokenizer_)},
          {"post_processor", json::parse(post_processor_)},
          {"decoder",
           {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", whole_words_first_},
            {"vocab", vocabulary},
            {"merges", merges}}}};
}

std::vector<std::int64_t> BytePair::encode(std::string_view text) const {
  std::vector<std::int64_t> ids;
  Words seen;
  // Where each added token occurs next; the first one counts, and of those that begin together the longest.
  std::vector<std::size_t> next(added_.size(), 0);
  for (std::size_t token = 0; token < added_.size(); ++token) next[token] = text.find(added_[token].content);
  for (std::size_t done = 0; done < text.size();) {
    std::size_t place = text.size();
    const Added* found = nullptr;
    for (std::size_t token = 0; token < added_.size(); ++token) {
      if (next[token] < done) next[token] = text.find(added_[token].content, done);
      const bool longer =
          found != nullptr && next[token] == place && added_[token].content.size() > found->content.size();
      if (next[token] < place || longer) place = next[token], found = &added_[token];
    }
    if (place > done) encode_words(text.substr(done, place - done), 0, seen, ids);
    if (found != nullptr) ids.push_back(found->id);
    done = place + (found != nullptr ? found->content.size() : 0);
  }
  return ids;
}

void BytePair::encode_words(std::string_view text, std::size_t step, Words& seen,
                            std::vector<std::int64_t>& ids) const {
  if (step < steps_.size()) {
    if (steps_[step]) {
      steps_[step]->split(text, [&](std::string_view piece) { encode_words(piece, step + 1, seen, ids); });
    } else {
      encode_words(text.starts_with(' ') ? std::string(text) : " " + std::string(text), step + 1, seen, ids);
    }
    return;
  }
  const auto [found, is_new] = seen.try_emplace(std::string(text));
  if (is_new) found->second = merged(text);
  ids.insert(ids.end(), found->second.begin(), found->second.end());
}

BytePair::Ids BytePair::merged(std::string_view word) const {
  if (whole_words_first_) {
    if (const auto found = ids_.find(spell(word)); found != ids_.end()) return {found->second};
  }
  // A list of tokens, and a heap of pairs that can be merged: the lowest rank first, then the leftmost.
  struct Symbol {
    std::int32_t id;
    std::int64_t before, after;
  };
  const auto count = static_cast<std::int64_t>(word.size());
  std::vector<Symbol> symbols;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto byte = static_cast<unsigned char>(word[static_cast<std::size_t>(i)]);
    require(byte_ids_[byte] >= 0, "tokenizer: the vocabulary has no token for the byte ", int{byte});
    symbols.push_back({byte_ids_[byte], i - 1, i + 1 < count ? i + 1 : -1});
  }
  const auto at = [&](std::int64_t place) -> Symbol& { return symbols[static_cast<std::size_t>(place)]; };
  using Candidate = std::tuple<std::int32_t, std::int64_t, std::int32_t>;  // rank, place, result
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto merge_of = [&](std::int64_t place) -> const Merge* {
    if (place < 0 || at(place).id < 0 || at(place).after < 0) return nullptr;
    const auto found = merges_.find(key_of(at(place).id, at(at(place).after).id));
    return found == merges_.end() ? nullptr : &found->second;
  };
  const auto consider = [&](std::int64_t place) {
    if (const Merge* merge = merge_of(place)) candidates.emplace(merge->rank, place, merge->result);
  };
  for (std::int64_t place = 0; place < count; ++place) consider(place);
  while (!candidates.empty()) {
    const auto [rank, place, result] = candidates.top();
    candidates.pop();
    const Merge* const merge = merge_of(place);
    if (merge == nullptr || merge->rank != rank) continue;  // one of the two was merged otherwise since
    Symbol &left = at(place), &right = at(left.after);
    left.id = result;
    right.id = -1;
    left.after = right.after;
    if (left.after >= 0) at(left.after).before = place;
    consider(left.before);
    consider(place);
  }
  Ids ids;
  for (std::int64_t place = count > 0 ? 0 : -1; place >= 0; place = at(place).after)
    ids.push_back(at(place).id);
  return ids;
}

const std::string& BytePair::bytes_of(std::int64_t id) const {
  require(id >= 0 && id < vocabulary_size(), "tokenizer: id ", id, " is outside the vocabulary of ",
          vocabulary_size());
  return tokens_[static_cast<std::size_t>(id)];
}

std::optional<std::int64_t> BytePair::find(std::string_view spelling) const {
  for (const Added& token : added_) {
    if (token.content == spelling) return token.id;
  }
  const auto found = ids_.find(std::string(spelling));
  return found == ids_.end() ? std::nullopt : std::optional<std::int64_t>(found->second);
}

bool BytePair::is_special(std::int64_t id) const {
  return std::ranges::any_of(added_, [id](const Added& token) { return token.id == id && token.special; });
}

bool BytePair::knows(std::string_view bytes) const {
  return std::ranges::all_of(bytes,
                             [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)] >= 0; });
}

}  // namespace needle
