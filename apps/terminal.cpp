#include "apps/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace needle {

std::string with_commas(std::int64_t number) {
  std::string digits = std::to_string(std::abs(number));
  for (std::ptrdiff_t place = static_cast<std::ptrdiff_t>(digits.size()) - 3; place > 0; place -= 3) {
    digits.insert(static_cast<std::size_t>(place), ",");
  }
  return number < 0 ? "-" + digits : digits;
}

std::string duration(double seconds) {
  const std::int64_t whole = std::llround(std::max(seconds, 0.0));
  std::ostringstream text;
  if (whole < 60)
    text << whole << " s";
  else if (whole < 3600)
    text << whole / 60 << " min " << std::setw(2) << std::setfill('0') << whole % 60 << " s";
  else
    text << whole / 3600 << " h " << std::setw(2) << std::setfill('0') << whole % 3600 / 60 << " min";
  return text.str();
}

std::string fixed(double number, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << number;
  return text.str();
}

std::string megabytes(double bytes) { return fixed(bytes / 1e6, 1) + " MB"; }

std::string percent(double part, double whole) { return fixed(100 * part / whole, 1) + " %"; }

std::string quoted(const std::string& text) {
  constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./,:=+@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

void print_row(const std::string& label, const std::string& text) {
  constexpr int kLabelWidth = 13;
  std::cout << std::left << std::setw(kLabelWidth) << label << "  " << printable(text, kLabelWidth + 2)
            << '\n';
}

std::string printable(const std::string& text, int indent) {
  std::ostringstream result;
  for (const char c : text) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (c == '\n' && indent >= 0)
      result << '\n' << std::string(static_cast<std::size_t>(indent), ' ');
    else if ((byte < 0x20 && c != '\t') || byte == 0x7F)
      result << "\\x" << std::hex << std::setw(2) << std::setfill('0') << static_cast<int>(byte);
    else
      result << c;
  }
  return result.str();
}

void print_json(const nlohmann::json& value) {
  std::cout << value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
}

LiveLine::LiveLine() : terminal_(isatty(STDERR_FILENO) != 0) {}

void LiveLine::show(const std::string& text) {
  if (!terminal_) return;
  winsize size{};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  // A line that wraps could not be taken back.
  std::cerr << "\r\033[K" << text.substr(0, known ? size.ws_col - 1u : text.size()) << std::flush;
  shown_ = true;
}

void LiveLine::clear() {
  if (shown_) std::cerr << "\r\033[K" << std::flush;
  shown_ = false;
}

}  // namespace needle
