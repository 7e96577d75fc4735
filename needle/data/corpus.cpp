#include "needle/data/corpus.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <utility>
#include <vector>

#include "backends/error.h"

namespace needle {
namespace {

// A name that starts with One speaks of a single subject, with Many of several; Either hasn't told yet. The
// numbers are relative weights.
constexpr std::string_view kRules = R"(
  Sentence      : 4 Clause . | 1 Opening , Clause .
  Opening       : now | then | here

  Clause        : 4 the Either | 2 a One | 1 each One | 1 some Many | 1 many Many | 2 Name OneRest
  Either        : 2 EitherNoun | 1 Adjective EitherNoun
  EitherNoun    : OneNoun OneRest | ManyNoun ManyRest
  One           : 2 OneNoun OneRest | 1 Adjective OneNoun OneRest
  Many          : 2 ManyNoun ManyRest | 1 Adjective ManyNoun ManyRest

  OneRest       : 4 OneDeed | 3 that OneRelative OneShortDeed | 3 Aside OneShortDeed
  ManyRest      : 4 ManyDeed | 3 that ManyRelative ManyShortDeed | 3 Aside ManyShortDeed
  OneRelative   : 2 OneMeets Somebody | 1 OneUses Something | 2 the Inner | 1 Name OneMeets
  ManyRelative  : 2 ManyMeet Somebody | 1 ManyUse Something | 2 the Inner | 1 Name OneMeets
  Inner         : OneNoun OneMeets | ManyNoun ManyMeet
  OneDeed       : 2 OneMoves How | 2 OneMeets Somebody End | 1 OneUses Something End
  ManyDeed      : 2 ManyMove How | 2 ManyMeet Somebody End | 1 ManyUse Something End
  OneShortDeed  : 2 OneMoves | 2 OneMeets Somebody | 1 OneUses Something
  ManyShortDeed : 2 ManyMove | 2 ManyMeet Somebody | 1 ManyUse Something

  Somebody      : 3 the Anybody | 1 a OneNoun | 1 many ManyNoun | 1 Name
  Anybody       : OneNoun | ManyNoun
  Something     : 2 the Colour Thing | 1 a Colour Thing
  How           : Manner | Place | Aside
  End           : 2 | 1 Place | 1 Aside
  Place         : Nearness the Spot

  Aside         : ( Company Within ) | [ Company Within ] | { Company Within }
  Within        : 1 | 1 Inside
  Inside        : ( Company ) | [ Company ] | { Company }
  Company       : Nearness Name

  OneNoun       : cat | dog | wolf | goose | mouse | king | nurse | pilot
  ManyNoun      : cats | dogs | wolves | geese | mice | kings | nurses | pilots
  OneMoves      : sings | runs | waits | swims
  ManyMove      : sing | run | wait | swim
  OneMeets      : sees | helps | likes | calls
  ManyMeet      : see | help | like | call
  OneUses       : finds | holds | wants
  ManyUse       : find | hold | want
  Name          : anna | ben | emma | hugo | leo
  Adjective     : old | young | small | happy
  Colour        : red | blue | grey
  Thing         : boat | drum | lamp | coat | kite
  Manner        : well | again | alone
  Nearness      : near | by | past
  Spot          : barn | lake | hill | road | mill
)";

std::set<std::string, std::less<>> words_of(const Grammar& grammar,
                                            std::initializer_list<const char*> names) {
  std::set<std::string, std::less<>> words;
  for (const char* name : names) words.merge(grammar.words_of(name));
  return words;
}

void check_brackets(const std::vector<std::string_view>& words, SentenceCheck& check) {
  constexpr std::string_view kOpening = "([{", kClosing = ")]}";
  std::vector<char> open;
  for (const std::string_view word : words) {
    if (kOpening.find(word) != std::string_view::npos) {
      open.push_back(kClosing[kOpening.find(word)]);
    } else if (kClosing.find(word) != std::string_view::npos) {
      ++check.brackets;
      if (open.empty() || open.back() != word[0]) continue;
      ++check.right_brackets;
      open.pop_back();
    }
  }
  check.brackets += static_cast<std::int64_t>(open.size());
}

}  // namespace

Corpus::Corpus()
    : grammar_(kRules),
      one_nouns_(words_of(grammar_, {"OneNoun", "Name"})),
      many_nouns_(words_of(grammar_, {"ManyNoun"})),
      one_verbs_(words_of(grammar_, {"OneMoves", "OneMeets", "OneUses"})),
      many_verbs_(words_of(grammar_, {"ManyMove", "ManyMeet", "ManyUse"})) {}

SentenceCheck Corpus::check(std::string_view sentence) const {
  enum class Number { one, many };
  const std::vector<std::string_view> words = split_words(sentence);
  SentenceCheck check;
  check.in_language = grammar_.log_probability(sentence).has_value();
  check_brackets(words, check);

  // The subjects that still wait for their verb. The first noun is one; so is, after `that`, the noun before
  // it if a verb comes next, else the next noun. All other nouns are objects or places.
  std::vector<Number> waiting;
  bool wants_subject = true;
  Number last_noun = Number::one;
  std::string_view word_before;
  for (const std::string_view word : words) {
    const bool one_noun = one_nouns_.contains(word), one_verb = one_verbs_.contains(word);
    if (word == "that") {
      wants_subject = true;
    } else if (one_noun || many_nouns_.contains(word)) {
      last_noun = one_noun ? Number::one : Number::many;
      if (std::exchange(wants_subject, false)) waiting.push_back(last_noun);
    } else if (one_verb || many_verbs_.contains(word)) {
      if (word_before == "that") {
        waiting.push_back(last_noun);
        wants_subject = false;
      }
      if (!waiting.empty()) {
        ++check.verbs;
        check.right_verbs += waiting.back() == (one_verb ? Number::one : Number::many) ? 1 : 0;
        waiting.pop_back();
      }
    }
    word_before = word;
  }
  return check;
}

double Corpus::mean_negative_log_probability(std::span<const std::string> sentences) const {
  double surprise = 0, targets = 0;
  for (const std::string& sentence : sentences) {
    const std::optional<double> log_probability = grammar_.log_probability(sentence);
    require(log_probability.has_value(), "corpus: not a sentence of the grammar: ", sentence);
    surprise -= *log_probability;
    targets += static_cast<double>(sentence.size()) + 1;
  }
  require(targets > 0, "corpus: no sentences to take the mean of");
  return surprise / targets;
}

double overlap(std::span<const std::string> training, std::span<const std::string> validation) {
  const std::unordered_set<std::string_view> known(training.begin(), training.end());
  const auto shared = std::count_if(validation.begin(), validation.end(),
                                    [&](const std::string& sentence) { return known.contains(sentence); });
  return validation.empty() ? 0 : static_cast<double>(shared) / static_cast<double>(validation.size());
}

}  // namespace needle
