#include "needle/inspect/svg_text.h"

#include <algorithm>
#include <array>
#include <sstream>

namespace needle {

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return result;
}

std::size_t character_count(std::string_view text) {
  const auto is_character_start = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  return static_cast<std::size_t>(std::ranges::count_if(text, is_character_start));
}

double text_width(std::string_view text, double size) {
  return 0.58 * size * static_cast<double>(character_count(text));
}

std::string digits(double value, std::chars_format format, int decimals) {
  std::array<char, 64> buffer;
  return {buffer.data(), std::to_chars(buffer.begin(), buffer.end(), value, format, decimals).ptr};
}

std::string place(double value) { return digits(value, std::chars_format::fixed, 1); }

std::string svg_start(std::string_view title, double width, double height, double font_size) {
  std::ostringstream out;
  out << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << width << ' ' << height << "\" width=\""
      << width << "\" height=\"" << height
      << "\" role=\"img\" font-family=\"system-ui, -apple-system, 'Segoe UI', "
      << "'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif\" font-size=\"" << font_size
      << "\" fill=\"#444\">\n"
      << "<title>" << escaped(title) << "</title>\n"
      << "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
  return out.str();
}

}  // namespace needle
