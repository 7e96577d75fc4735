// Cutting text into words by a regular expression, as byte-pair tokenizers do before they merge.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace needle {

/// A compiled regular expression with Unicode's classes (PCRE2). Copies share it; threads may, too.
class SplitPattern {
 public:
  /// Throws on wrong syntax, showing where.
  explicit SplitPattern(std::string pattern);

  /// Calls `use` with each match and with what lies between matches, in order, so that the pieces add up to
  /// `text`. Bytes that are not UTF-8 match nothing.
  void split(std::string_view text, const std::function<void(std::string_view)>& use) const;

 private:
  void split_valid(std::string_view text, const std::function<void(std::string_view)>& use) const;

  std::string pattern_;
  std::shared_ptr<void> code_;
};

}  // namespace needle
