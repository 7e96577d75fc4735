// UTF-8, read one character at a time; what is not UTF-8 is told apart exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace needle {

/// U+FFFD, which stands for bytes that are not UTF-8.
inline constexpr std::string_view kReplacementMark = "\xEF\xBF\xBD";

/// What stands at the start of a text: a whole character, bytes that no character begins with, or a
/// character whose last bytes are still missing.
struct Utf8Character {
  enum class Kind { whole, invalid, cut_off };
  Kind kind;
  std::size_t length;       ///< bytes of the character, or of the maximal part that one mark replaces
  std::int32_t code_point;  ///< of a whole character, else -1
};

/// Reads the character at the start of `text`, which must not be empty. Invalid bytes are divided into
/// maximal subparts (Unicode 15, section 3.9, tables 3-7 and 3-8).
Utf8Character read_utf8(std::string_view text);

/// The bytes of one code point.
std::string write_utf8(std::int32_t code_point);

/// `bytes` as valid UTF-8: each maximal invalid part becomes one U+FFFD.
std::string repair_utf8(std::string_view bytes);

}  // namespace needle
