#include "needle/data/utf8.h"

namespace needle {
namespace {

// A row of Unicode's table 3-7: which first bytes, how many follow, and the range of the second byte.
struct Form {
  unsigned first_low, first_high;
  std::size_t length;
  unsigned second_low, second_high;
};

constexpr Form kForms[] = {
    {0xC2, 0xDF, 2, 0x80, 0xBF}, {0xE0, 0xE0, 3, 0xA0, 0xBF}, {0xE1, 0xEC, 3, 0x80, 0xBF},
    {0xED, 0xED, 3, 0x80, 0x9F}, {0xEE, 0xEF, 3, 0x80, 0xBF}, {0xF0, 0xF0, 4, 0x90, 0xBF},
    {0xF1, 0xF3, 4, 0x80, 0xBF}, {0xF4, 0xF4, 4, 0x80, 0x8F},
};

const Form* find_form(unsigned first) {
  for (const Form& form : kForms) {
    if (first >= form.first_low && first <= form.first_high) return &form;
  }
  return nullptr;
}

}  // namespace

Utf8Character read_utf8(std::string_view text) {
  using Kind = Utf8Character::Kind;
  const auto byte = [&](std::size_t index) { return static_cast<unsigned char>(text[index]); };
  const unsigned first = byte(0);
  if (first < 0x80) return {Kind::whole, 1, static_cast<std::int32_t>(first)};
  const Form* form = find_form(first);
  if (form == nullptr) return {Kind::invalid, 1, -1};

  std::uint32_t code_point = first & (0xFFu >> (form->length + 1));
  for (std::size_t index = 1; index < form->length; ++index) {
    if (index == text.size()) return {Kind::cut_off, index, -1};
    const unsigned low = index == 1 ? form->second_low : 0x80;
    const unsigned high = index == 1 ? form->second_high : 0xBF;
    if (byte(index) < low || byte(index) > high) return {Kind::invalid, index, -1};
    code_point = (code_point << 6) | (byte(index) & 0x3F);
  }
  return {Kind::whole, form->length, static_cast<std::int32_t>(code_point)};
}

std::string write_utf8(std::int32_t code_point) {
  const auto code = static_cast<std::uint32_t>(code_point);
  const auto tail = [code](int shift) { return static_cast<char>(0x80 | ((code >> shift) & 0x3F)); };
  const auto head = [code](std::uint32_t mark, int shift) {
    return static_cast<char>(mark | (code >> shift));
  };
  if (code < 0x80) return {head(0, 0)};
  if (code < 0x800) return {head(0xC0, 6), tail(0)};
  if (code < 0x10000) return {head(0xE0, 12), tail(6), tail(0)};
  return {head(0xF0, 18), tail(12), tail(6), tail(0)};
}

std::string repair_utf8(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const Utf8Character next = read_utf8(bytes);
    text += next.kind == Utf8Character::Kind::whole ? bytes.substr(0, next.length) : kReplacementMark;
    bytes.remove_prefix(next.length);
  }
  return text;
}

}  // namespace needle
