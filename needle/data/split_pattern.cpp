#include "needle/data/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <utility>

#include "backends/error.h"
#include "needle/data/utf8.h"

namespace needle {
namespace {

std::string message_of_error(int error) {
  constexpr std::size_t kLongest = 256;
  PCRE2_UCHAR text[kLongest];
  const int length = pcre2_get_error_message(error, text, kLongest);
  return length > 0 ? std::string(reinterpret_cast<const char*>(text), static_cast<std::size_t>(length))
                    : "error " + std::to_string(error);
}

PCRE2_SPTR units_of(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

// \s as the property White_Space, which tokenizers mean; PCRE2's own holds U+180E, too.
std::string with_white_space(std::string_view pattern) {
  std::string result;
  while (!pattern.empty()) {
    const bool escape = pattern[0] == '\\' && pattern.size() > 1;
    const std::string_view token = pattern.substr(0, escape ? 2 : 1);
    result += token == "\\s" ? "\\p{White_Space}" : token == "\\S" ? "\\P{White_Space}" : token;
    pattern.remove_prefix(token.size());
  }
  return result;
}

std::size_t valid_length(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size()) {
    const Utf8Character next = read_utf8(text.substr(length));
    if (next.kind != Utf8Character::Kind::whole) break;
    length += next.length;
  }
  return length;
}

}  // namespace

SplitPattern::SplitPattern(std::string pattern) : pattern_(std::move(pattern)) {
  const std::string compiled = with_white_space(pattern_);
  int error = 0;
  PCRE2_SIZE place = 0;
  pcre2_code* const code =
      pcre2_compile(units_of(compiled), compiled.size(), PCRE2_UTF | PCRE2_UCP, &error, &place, nullptr);
  require(code != nullptr, "tokenizer: the split pattern ", pattern_, " is wrong near its character ", place,
          ": ", message_of_error(error));
  code_ = std::shared_ptr<void>(code, [](void* it) { pcre2_code_free(static_cast<pcre2_code*>(it)); });
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where it cannot, matching is slower
}

void SplitPattern::split(std::string_view text, const std::function<void(std::string_view)>& use) const {
  while (!text.empty()) {
    const std::size_t valid = valid_length(text);
    if (valid > 0) split_valid(text.substr(0, valid), use);
    text.remove_prefix(valid);
    std::size_t broken = 0;
    while (broken < text.size()) {
      const Utf8Character next = read_utf8(text.substr(broken));
      if (next.kind == Utf8Character::Kind::whole) break;
      broken += next.length;
    }
    if (broken > 0) use(text.substr(0, broken));
    text.remove_prefix(broken);
  }
}

void SplitPattern::split_valid(std::string_view text,
                               const std::function<void(std::string_view)>& use) const {
  const auto* const code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  require(match != nullptr, "tokenizer: there is not enough memory");
  std::size_t done = 0;
  // An empty match cuts nothing, and another may begin where it stands.
  const std::uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
  while (done < text.size()) {
    int found = pcre2_match(code, units_of(text), text.size(), done, options, match.get(), nullptr);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT)
      found =
          pcre2_match(code, units_of(text), text.size(), done, options | PCRE2_NO_JIT, match.get(), nullptr);
    if (found == PCRE2_ERROR_NOMATCH) break;
    require(found >= 0, "tokenizer: the split pattern ", pattern_, " fails: ", message_of_error(found));
    const PCRE2_SIZE* const ends = pcre2_get_ovector_pointer(match.get());
    // A lookbehind with \K could end before it begins.
    require(ends[0] >= done && ends[1] > ends[0], "tokenizer: the split pattern ", pattern_,
            " matches backwards");
    if (ends[0] > done) use(text.substr(done, ends[0] - done));
    use(text.substr(ends[0], ends[1] - ends[0]));
    done = ends[1];
  }
  if (done < text.size()) use(text.substr(done));
}

}  // namespace needle
