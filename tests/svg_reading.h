// Reading drawings in tests.
#pragma once

#include <string>
#include <string_view>

namespace needle {

/// How often `part` stands in `text`.
inline int count(std::string_view text, std::string_view part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

/// The texts of all labels and ticks of an SVG drawing, each in brackets.
inline std::string texts(std::string_view svg) {
  std::string result;
  for (std::size_t at = svg.find("<text"); at != svg.npos; at = svg.find("<text", at + 1)) {
    const std::size_t start = svg.find('>', at) + 1;
    result += '[' + std::string(svg.substr(start, svg.find('<', start) - start)) + ']';
  }
  return result;
}

}  // namespace needle
