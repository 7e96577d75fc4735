// The built-in corpus: small English sentences whose structure must be learned over a distance, made by a
// grammar that knows their exact probability.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "needle/data/grammar.h"
#include "needle/data/tokenizer.h"

namespace needle {

/// What stands right and wrong in one sentence, the grammar's own or a model's.
struct SentenceCheck {
  std::int64_t verbs = 0, right_verbs = 0;        ///< verbs with a subject, and those that agree with it
  std::int64_t brackets = 0, right_brackets = 0;  ///< brackets, closed ones and those that closed in order
  bool in_language = false;                       ///< the grammar makes this very sentence

  /// There is a verb with a subject, and every such verb agrees.
  bool agreement() const { return verbs > 0 && verbs == right_verbs; }
  /// Every bracket that opens closes, in order; none closes that never opened.
  bool brackets_close() const { return brackets == right_brackets; }
};

/// Sentences such as `the wolves that help a king {near emma [by leo]} run.` A subject and its verb agree in
/// number across a relative clause or brackets; brackets of three kinds nest up to two deep. Depth is bounded
/// inside the grammar, so no sentence is longer than 68 characters.
class Corpus {
 public:
  Corpus();

  /// The grammar: its probabilities, entropy and lengths.
  const Grammar& grammar() const { return grammar_; }
  /// Characters as tokens: exactly those that the grammar uses.
  Tokenizer tokenizer() const { return Tokenizer::characters(grammar_.alphabet()); }

  /// A sentence, drawn with its probability.
  std::string sample(Generator& generator) const { return grammar_.sample(generator); }
  /// Judges any text. A verb is judged if a subject waits for it, and agrees if it has that subject's number;
  /// whether words are missing, misspelt or misplaced is what `in_language` tells.
  SentenceCheck check(std::string_view sentence) const;

  /// The exact floor of the loss on these `sentences`: their mean -ln p in nats per valid target, which are
  /// the characters of each and its EOS. Throws on a sentence outside the language.
  double mean_negative_log_probability(std::span<const std::string> sentences) const;
  /// The grammar's own entropy in nats per target: sentence entropy over the expected number of targets.
  double entropy_rate() const { return grammar_.entropy() / (grammar_.expected_length() + 1); }

 private:
  Grammar grammar_;
  std::set<std::string, std::less<>> one_nouns_, many_nouns_, one_verbs_, many_verbs_;
};

/// The share of the `validation` sentences that also occur in `training`.
double overlap(std::span<const std::string> training, std::span<const std::string> validation);

}  // namespace needle
