// Text for people: numbers with units, and a live line that is only there on a terminal.
#pragma once

#include <cstdint>
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

/// One line on stderr that is written over and over; nothing when stderr is no terminal.
class LiveLine {
 public:
  LiveLine();
  ~LiveLine() { clear(); }
  LiveLine(const LiveLine&) = delete;
  LiveLine& operator=(const LiveLine&) = delete;
  void show(const std::string& text);
  void clear();
  bool visible() const { return terminal_; }

 private:
  bool terminal_;
  bool shown_ = false;
};

}  // namespace needle
