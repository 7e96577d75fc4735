// Printing of arrays for people.
#include <iomanip>
#include <sstream>

#include "needle/ndarray.h"

namespace needle {

namespace {

constexpr std::int64_t kLongAxis = 8, kShownEnds = 3;

/// The shown part of the last axes, each number as text.
void collect(const NDArray& x, std::vector<std::string>& texts) {
  if (x.rank() == 0) {
    std::ostringstream text;
    if (x.dtype() == DType::boolean)
      text << (x.item() != 0 ? "true" : "false");
    else if (is_floating(x.dtype()))
      text << std::setprecision(5) << x.item();
    else
      text << static_cast<std::int64_t>(x.item());
    texts.push_back(text.str());
    return;
  }
  for (std::int64_t i = 0; i < x.size(0); ++i) {
    if (x.size(0) > kLongAxis && i == kShownEnds) i = x.size(0) - kShownEnds;
    collect(x[i], texts);
  }
}

void write(std::ostream& out, const NDArray& x, const std::vector<std::string>& texts, std::size_t& next,
           int width, int indent) {
  if (x.rank() == 0) {
    out << std::setw(width) << texts[next++];
    return;
  }
  out << '[';
  for (std::int64_t i = 0; i < x.size(0); ++i) {
    if (i > 0) out << (x.rank() == 1 ? ", " : ",\n" + std::string(static_cast<std::size_t>(indent + 1), ' '));
    if (x.size(0) > kLongAxis && i == kShownEnds) {
      out << (x.rank() == 1 ? "..., " : "...,\n" + std::string(static_cast<std::size_t>(indent + 1), ' '));
      i = x.size(0) - kShownEnds;
    }
    write(out, x[i], texts, next, width, indent + 1);
  }
  out << ']';
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const NDArray& array) {
  if (!array.defined()) return out << "undefined array";
  out << name_of(array.dtype()) << array.shape() << " on " << array.device().name() << '\n';
  std::vector<std::string> texts;
  collect(array, texts);
  std::size_t width = 0, next = 0;
  for (const std::string& text : texts) width = std::max(width, text.size());
  write(out, array, texts, next, static_cast<int>(width), 0);
  return out;
}

}  // namespace needle
