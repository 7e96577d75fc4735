// A probabilistic grammar that is read from a table of rules: it samples sentences and knows, exactly, the
// probability of each, and the entropy, the mean length and the greatest length of all.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "needle/random.h"

namespace needle {

/// The words and marks of `sentence`: a word is a run of letters, any other character but a space is a mark.
std::vector<std::string_view> split_words(std::string_view sentence);
/// The inverse for well-spaced text: one space between words, none before .,)]} and none after ([{.
std::string join_words(const std::vector<std::string_view>& words);

/// A grammar without recursion, so that its sentences are finite, whose next word always decides the rule to
/// apply (it is LL(1)), so that every sentence has one derivation: its probability is the product of the
/// weights along that derivation, and the entropy of derivations is the entropy of sentences.
class Grammar {
 public:
  /// One rule a line, `Name : 3 some words | 1 Other | ...`: alternatives with their relative weights (1 if
  /// not given), each a list of names and words, or empty. The first rule is the start. Throws if a name is
  /// recursive, unused or defined twice, or if one word can begin two alternatives of a name.
  explicit Grammar(std::string_view rules);

  /// A sentence, drawn with its probability.
  std::string sample(Generator& generator) const;
  /// ln of the probability of `sentence`; nothing if the grammar doesn't make it.
  std::optional<double> log_probability(std::string_view sentence) const;

  /// Mean of -ln p over all sentences, in nats. By recursion over the rules, not by sampling.
  double entropy() const { return symbols_[kStart].entropy; }
  /// Mean number of characters in a sentence, likewise exact.
  double expected_length() const { return symbols_[kStart].length - 1; }
  /// Number of characters in the longest sentence.
  std::int64_t longest() const { return symbols_[kStart].longest - 1; }

  /// Every character that a sentence can hold, sorted.
  std::string alphabet() const;
  /// The words among the alternatives of the rule `name`; throws if there is no such rule.
  std::set<std::string> words_of(std::string_view name) const;
  /// How many different words and marks the sentences are made of.
  std::int64_t word_count() const;

 private:
  using SymbolId = std::size_t;

  struct Alternative {
    double probability;
    std::vector<SymbolId> parts;
  };

  // A name (with alternatives) or a word (without). Lengths are counted in characters, where each word
  // brings the space before it along, and an opening bracket takes away the space after it.
  struct Symbol {
    std::string text;
    std::vector<Alternative> alternatives;
    double entropy = 0, length = 0;
    std::int64_t longest = 0;
    bool can_be_empty = false;
    std::set<SymbolId> first;                // the words that it can begin with
    std::map<SymbolId, std::size_t> choice;  // next word -> the alternative to take
  };

  SymbolId find_or_add(std::string_view text);
  void read_rule(std::string_view line, std::set<SymbolId>& defined);
  std::vector<SymbolId> order_from_the_leaves() const;
  void measure(Symbol& symbol) const;
  void prepare_choices(const std::vector<SymbolId>& order);
  // The words that the parts from `from` on can begin with; `after` if all of them can be empty.
  std::set<SymbolId> beginnings(const Alternative& alternative, std::size_t from,
                                const std::set<SymbolId>& after) const;

  static constexpr SymbolId kStart = 0;
  std::vector<Symbol> symbols_;
  std::map<std::string, SymbolId, std::less<>> ids_;
};

}  // namespace needle
