#include "needle/generate/text_stream.h"

#include <algorithm>

#include "backends/error.h"

namespace needle {

TextStream::TextStream(Tokenizer tokenizer, std::vector<std::string> stops)
    : decoder_(std::move(tokenizer)), stops_(std::move(stops)) {
  for (const std::string& stop : stops_) require(!stop.empty(), "generate: a stop string must not be empty");
}

std::string TextStream::push(std::int64_t id) { return shown(decoder_.push(id), false); }

std::string TextStream::finish() { return shown(decoder_.finish(), true); }

std::string TextStream::shown(std::string text, bool ends) {
  if (stopped_) return {};
  text.insert(0, held_back_);
  held_back_.clear();
  std::size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, text.find(stop));
  if (first != std::string::npos) {
    stopped_ = true;
    return text.substr(0, first);
  }
  // The longest end that is a beginning of a stop string.
  std::size_t held = 0;
  for (const std::string& stop : stops_) {
    for (std::size_t size = std::min(stop.size() - 1, text.size()); size > held; --size) {
      if (text.ends_with(stop.substr(0, size))) held = size;
    }
  }
  if (ends) held = 0;
  held_back_ = text.substr(text.size() - held);
  return text.substr(0, text.size() - held);
}

}  // namespace needle
