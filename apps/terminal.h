// Text for people: numbers with units, aligned rows, and a live line that is only there on a terminal.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace needle {

/// "1,234,567".
std::string with_commas(std::int64_t number);
/// "45 s", "3 min 05 s", "2 h 10 min".
std::string duration(double seconds);
/// "12.3 MB".
std::string megabytes(double bytes);
/// A number with `digits` after the point.
std::string fixed(double number, int digits);
/// `part` of `whole` as "99.4 %".
std::string percent(double part, double whole);

/// `text` without control characters, which could move the cursor or worse: they become \\xNN. A new line
/// begins with `indent` spaces, or is a control character too when that is negative.
std::string printable(const std::string& text, int indent = -1);
/// `text` as one word of a shell's command line.
std::string quoted(const std::string& text);
/// A row on stdout: the label, and the text, made printable, in a column of its own.
void print_row(const std::string& label, const std::string& text);

/// A JSON value as a line on stdout; what is not UTF-8 in it becomes U+FFFD.
void print_json(const nlohmann::json& value);

/// One line on stderr that is written over and over; nothing when stderr is no terminal.
class LiveLine {
 public:
  LiveLine();
  LiveLine(const LiveLine&) = delete;
  LiveLine& operator=(const LiveLine&) = delete;
  ~LiveLine() { clear(); }
  /// Replaces the line.
  void show(const std::string& text);
  void clear();

 private:
  bool terminal_;
  bool shown_ = false;
};

}  // namespace needle
