// The ids of a row as text, as they come.
#pragma once

#include <string>
#include <vector>

#include "needle/data/tokenizer.h"

namespace needle {

/// Turns ids into text that can be shown at once: what may still become a character, or one of the stop
/// strings, is held back. The text ends before the first stop string.
class TextStream {
 public:
  /// An empty stop string is an Error.
  TextStream(Tokenizer tokenizer, std::vector<std::string> stops);

  /// The text that `id` adds, often less or more than its own.
  std::string push(std::int64_t id);
  /// Whether a stop string was met.
  bool has_stopped() const { return stopped_; }
  /// Ends the row: what was held back.
  std::string finish();

 private:
  std::string shown(std::string text, bool ends);

  StreamingDecoder decoder_;
  std::vector<std::string> stops_;
  std::string held_back_;
  bool stopped_ = false;
};

}  // namespace needle
