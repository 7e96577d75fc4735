#include "needle/data/grammar.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <sstream>

#include "backends/error.h"

namespace needle {
namespace {

// Stands for the end of the sentence where the next word is asked for.
constexpr std::size_t kEndOfSentence = static_cast<std::size_t>(-1);

bool is_letter(char character) { return std::isalpha(static_cast<unsigned char>(character)) != 0; }
bool is_one_of(std::string_view marks, std::string_view word) {
  return word.size() == 1 && marks.find(word[0]) != std::string_view::npos;
}
bool joins_the_word_before(std::string_view word) { return is_one_of(".,)]}", word); }
bool joins_the_word_after(std::string_view word) { return is_one_of("([{", word); }

std::vector<std::string> split_at(std::string_view text, char separator) {
  std::vector<std::string> pieces(1);
  for (const char character : text) {
    if (character == separator) {
      pieces.emplace_back();
    } else {
      pieces.back() += character;
    }
  }
  return pieces;
}

std::vector<std::string> split_at_spaces(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> pieces;
  for (std::string piece; stream >> piece;) pieces.push_back(piece);
  return pieces;
}

}  // namespace

std::vector<std::string_view> split_words(std::string_view sentence) {
  std::vector<std::string_view> words;
  for (std::size_t at = 0; at < sentence.size();) {
    std::size_t end = at;
    while (end < sentence.size() && is_letter(sentence[end])) ++end;
    if (end == at) ++end;
    if (sentence[at] != ' ') words.push_back(sentence.substr(at, end - at));
    at = end;
  }
  return words;
}

std::string join_words(const std::vector<std::string_view>& words) {
  std::string text;
  for (std::size_t index = 0; index < words.size(); ++index) {
    const bool joined =
        index == 0 || joins_the_word_before(words[index]) || joins_the_word_after(words[index - 1]);
    if (!joined) text += ' ';
    text += words[index];
  }
  return text;
}

Grammar::Grammar(std::string_view rules) {
  std::set<SymbolId> defined;
  for (const std::string& line : split_at(rules, '\n')) {
    if (!split_at_spaces(line).empty()) read_rule(line, defined);
  }
  require(!defined.empty(), "grammar: no rules");
  const std::vector<SymbolId> order = order_from_the_leaves();
  for (const SymbolId id : defined) {
    require(std::find(order.begin(), order.end(), id) != order.end(), "grammar: the rule for ",
            symbols_[id].text, " is never used");
  }
  for (const SymbolId id : order) measure(symbols_[id]);
  prepare_choices(order);
}

Grammar::SymbolId Grammar::find_or_add(std::string_view text) {
  const auto [place, added] = ids_.try_emplace(std::string(text), symbols_.size());
  if (added) {
    symbols_.emplace_back();
    symbols_.back().text = text;
  }
  return place->second;
}

void Grammar::read_rule(std::string_view line, std::set<SymbolId>& defined) {
  const std::size_t colon = line.find(':');
  const std::vector<std::string> name = split_at_spaces(std::string(line.substr(0, colon)));
  require(colon != std::string_view::npos && name.size() == 1, "grammar: wanted 'Name : ...', got '", line,
          "'");
  const SymbolId id = find_or_add(name[0]);
  require(defined.insert(id).second, "grammar: two rules for ", name[0]);

  std::vector<Alternative> alternatives;
  double total = 0;
  for (const std::string& text : split_at(line.substr(colon + 1), '|')) {
    Alternative alternative{1, {}};
    bool first = true;
    for (const std::string& part : split_at_spaces(text)) {
      if (first && std::isdigit(static_cast<unsigned char>(part[0])) != 0) {
        alternative.probability = std::stod(part);
      } else {
        alternative.parts.push_back(find_or_add(part));
      }
      first = false;
    }
    require(alternative.probability > 0, "grammar: a weight of ", name[0], " is not positive");
    total += alternative.probability;
    alternatives.push_back(std::move(alternative));
  }
  for (Alternative& alternative : alternatives) alternative.probability /= total;
  symbols_[id].alternatives = std::move(alternatives);
}

// Every symbol that the start needs, each after all of its own parts.
std::vector<Grammar::SymbolId> Grammar::order_from_the_leaves() const {
  enum class Mark { untouched, open, done };
  std::vector<Mark> marks(symbols_.size(), Mark::untouched);
  std::vector<SymbolId> order;
  const std::function<void(SymbolId)> visit = [&](SymbolId id) {
    require(marks[id] != Mark::open, "grammar: ", symbols_[id].text, " is recursive");
    if (marks[id] == Mark::done) return;
    marks[id] = Mark::open;
    for (const Alternative& alternative : symbols_[id].alternatives) {
      for (const SymbolId part : alternative.parts) visit(part);
    }
    marks[id] = Mark::done;
    order.push_back(id);
  };
  visit(kStart);
  return order;
}

void Grammar::measure(Symbol& symbol) const {
  if (symbol.alternatives.empty()) {
    const std::string& word = symbol.text;
    const bool is_word = std::all_of(word.begin(), word.end(), is_letter);
    require(is_word || word.size() == 1, "grammar: '", word, "' is neither letters nor one mark");
    symbol.longest = static_cast<std::int64_t>(word.size()) + (joins_the_word_before(word) ? 0 : 1) -
                     (joins_the_word_after(word) ? 1 : 0);
    symbol.length = static_cast<double>(symbol.longest);
    symbol.first = {ids_.at(word)};
    return;
  }
  for (const Alternative& alternative : symbol.alternatives) {
    double surprise = -std::log(alternative.probability), length = 0;
    std::int64_t longest = 0;
    bool can_be_empty = true;
    for (const SymbolId id : alternative.parts) {
      const Symbol& part = symbols_[id];
      surprise += part.entropy;
      length += part.length;
      longest += part.longest;
      can_be_empty = can_be_empty && part.can_be_empty;
    }
    symbol.entropy += alternative.probability * surprise;
    symbol.length += alternative.probability * length;
    symbol.longest = std::max(symbol.longest, longest);
    symbol.can_be_empty = symbol.can_be_empty || can_be_empty;
    symbol.first.merge(beginnings(alternative, 0, {}));
  }
}

std::set<Grammar::SymbolId> Grammar::beginnings(const Alternative& alternative, std::size_t from,
                                                const std::set<SymbolId>& after) const {
  std::set<SymbolId> words;
  for (std::size_t index = from; index < alternative.parts.size(); ++index) {
    const Symbol& part = symbols_[alternative.parts[index]];
    words.insert(part.first.begin(), part.first.end());
    if (!part.can_be_empty) return words;
  }
  words.insert(after.begin(), after.end());
  return words;
}

// From the start downwards, so that all that can follow a symbol is known when its turn comes.
void Grammar::prepare_choices(const std::vector<SymbolId>& order) {
  std::vector<std::set<SymbolId>> follow(symbols_.size());
  follow[kStart] = {kEndOfSentence};
  for (auto id = order.rbegin(); id != order.rend(); ++id) {
    Symbol& symbol = symbols_[*id];
    for (std::size_t index = 0; index < symbol.alternatives.size(); ++index) {
      const Alternative& alternative = symbol.alternatives[index];
      for (const SymbolId word : beginnings(alternative, 0, follow[*id])) {
        require(symbol.choice.emplace(word, index).second,
                "grammar: ", word == kEndOfSentence ? "the end" : symbols_[word].text,
                " begins two alternatives of ", symbol.text);
      }
      for (std::size_t part = 0; part < alternative.parts.size(); ++part) {
        follow[alternative.parts[part]].merge(beginnings(alternative, part + 1, follow[*id]));
      }
    }
    // The lengths count on a word, or a further bracket, at the start and after every opening bracket.
    const std::set<SymbolId>& next = *id == kStart ? symbol.first : follow[*id];
    if (*id != kStart && !joins_the_word_after(symbol.text)) continue;
    for (const SymbolId word : next) {
      require(word != kEndOfSentence && !joins_the_word_before(symbols_[word].text),
              "grammar: no word after '", *id == kStart ? "" : symbol.text, "'");
    }
  }
}

std::string Grammar::sample(Generator& generator) const {
  std::vector<std::string_view> words;
  std::vector<SymbolId> to_do = {kStart};
  while (!to_do.empty()) {
    const Symbol& symbol = symbols_[to_do.back()];
    to_do.pop_back();
    if (symbol.alternatives.empty()) {
      words.push_back(symbol.text);
      continue;
    }
    double left = generator.uniform();
    std::size_t index = 0;
    while (index + 1 < symbol.alternatives.size() && left >= symbol.alternatives[index].probability) {
      left -= symbol.alternatives[index++].probability;
    }
    const std::vector<SymbolId>& parts = symbol.alternatives[index].parts;
    to_do.insert(to_do.end(), parts.rbegin(), parts.rend());
  }
  return join_words(words);
}

std::optional<double> Grammar::log_probability(std::string_view sentence) const {
  const std::vector<std::string_view> words = split_words(sentence);
  if (join_words(words) != sentence) return std::nullopt;
  double log_probability = 0;
  std::size_t at = 0;
  std::vector<SymbolId> to_do = {kStart};
  while (!to_do.empty()) {
    const SymbolId id = to_do.back();
    const Symbol& symbol = symbols_[id];
    to_do.pop_back();
    SymbolId next = kEndOfSentence;
    if (at < words.size()) {
      const auto known = ids_.find(words[at]);
      if (known == ids_.end()) return std::nullopt;
      next = known->second;
    }
    if (symbol.alternatives.empty()) {
      if (next != id) return std::nullopt;
      ++at;
      continue;
    }
    const auto choice = symbol.choice.find(next);
    if (choice == symbol.choice.end()) return std::nullopt;
    const Alternative& alternative = symbol.alternatives[choice->second];
    log_probability += std::log(alternative.probability);
    to_do.insert(to_do.end(), alternative.parts.rbegin(), alternative.parts.rend());
  }
  if (at != words.size()) return std::nullopt;
  return log_probability;
}

std::string Grammar::alphabet() const {
  std::set<char> characters = {' '};
  for (const Symbol& symbol : symbols_) {
    if (symbol.alternatives.empty()) characters.insert(symbol.text.begin(), symbol.text.end());
  }
  return {characters.begin(), characters.end()};
}

std::set<std::string> Grammar::words_of(std::string_view name) const {
  const auto found = ids_.find(name);
  require(found != ids_.end() && !symbols_[found->second].alternatives.empty(), "grammar: no rule for ",
          name);
  std::set<std::string> words;
  for (const Alternative& alternative : symbols_[found->second].alternatives) {
    for (const SymbolId part : alternative.parts) {
      if (symbols_[part].alternatives.empty()) words.insert(symbols_[part].text);
    }
  }
  return words;
}

std::int64_t Grammar::word_count() const {
  return std::count_if(symbols_.begin(), symbols_.end(),
                       [](const Symbol& symbol) { return symbol.alternatives.empty(); });
}

}  // namespace needle
