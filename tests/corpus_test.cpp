// The grammar against its own enumeration, and the built-in corpus against its promises.
#include "needle/data/corpus.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "backends/error.h"

namespace needle {
namespace {

// Small enough to list by hand; it has an optional part, brackets and unequal weights.
constexpr std::string_view kTinyRules = R"(
  Start : 3 a Noun End . | 1 we Noun .
  Noun  : 1 cat | 3 Other
  Other : dog
  End   : 1 | 1 ( Noun ) | 2 [ ( Noun ) ]
)";

const std::map<std::string, double> kTinySentences = {
    {"a cat.", 3. / 64},           {"a cat (cat).", 3. / 256},    {"a cat (dog).", 9. / 256},
    {"a cat [(cat)].", 6. / 256},  {"a cat [(dog)].", 18. / 256}, {"a dog.", 9. / 64},
    {"a dog (cat).", 9. / 256},    {"a dog (dog).", 27. / 256},   {"a dog [(cat)].", 18. / 256},
    {"a dog [(dog)].", 54. / 256}, {"we cat.", 1. / 16},          {"we dog.", 3. / 16},
};

TEST(Grammar, agrees_with_the_list_of_all_its_sentences) {
  const Grammar grammar(kTinyRules);
  double total = 0, entropy = 0, length = 0;
  std::size_t longest = 0;
  for (const auto& [sentence, probability] : kTinySentences) {
    ASSERT_TRUE(grammar.log_probability(sentence).has_value()) << sentence;
    EXPECT_NEAR(*grammar.log_probability(sentence), std::log(probability), 1e-12) << sentence;
    total += probability;
    entropy -= probability * std::log(probability);
    length += probability * static_cast<double>(sentence.size());
    longest = std::max(longest, sentence.size());
  }
  EXPECT_NEAR(total, 1, 1e-12);
  EXPECT_NEAR(grammar.entropy(), entropy, 1e-12);
  EXPECT_NEAR(grammar.expected_length(), length, 1e-12);
  EXPECT_EQ(grammar.longest(), static_cast<std::int64_t>(longest));
  EXPECT_EQ(grammar.alphabet(), " ().[]acdegotw");
}

TEST(Grammar, samples_each_sentence_as_often_as_it_should) {
  const Grammar grammar(kTinyRules);
  Generator generator(5);
  std::map<std::string, int> counts;
  constexpr int kSamples = 20000;
  for (int index = 0; index < kSamples; ++index) ++counts[grammar.sample(generator)];
  ASSERT_EQ(counts.size(), kTinySentences.size());
  for (const auto& [sentence, probability] : kTinySentences) {
    const double deviation = std::sqrt(kSamples * probability * (1 - probability));
    EXPECT_NEAR(counts[sentence], kSamples * probability, 4.5 * deviation) << sentence;
  }
}

TEST(Grammar, other_texts_have_no_probability) {
  const Grammar grammar(kTinyRules);
  for (const char* text : {"", "a", "a cat", "a cat .", "a  cat.", " a cat.", "a cat. ", "a cat.a", "a cow.",
                           "A cat.", "a cat ( cat).", "a cat [(cat]).", "a cat ().", "a Noun.",
                           "we cat (cat).", "a cat..", "a cat\n.", "\xFF"}) {
    EXPECT_FALSE(grammar.log_probability(text).has_value()) << text;
  }
}

TEST(Grammar, refuses_rules_that_are_not_unambiguous_and_finite) {
  const std::pair<const char*, const char*> cases[] = {
      {"S : a | a b", "a begins two alternatives of S"},
      {"S : A b\n A : 1 | 1 b", "b begins two alternatives of A"},
      {"S : a A\n A : 1 | B\n B : 1 | c", "the end begins two alternatives of A"},
      {"S : a S | b", "S is recursive"},
      {"S : a\n T : b", "the rule for T is never used"},
      {"S : a\n S : b", "two rules for S"},
      {"S : 0 a | b", "not positive"},
      {"S a", "wanted 'Name : ...'"},
      {"S : ( )", "no word after '('"},
      {"S : . a", "no word after ''"},
      {"S : don't", "neither letters nor one mark"},
      {"", "no rules"},
  };
  for (const auto& [rules, message] : cases) {
    try {
      const Grammar grammar(rules);
      ADD_FAILURE() << rules;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  }
}

TEST(Corpus, sampled_sentences_keep_every_promise) {
  const Corpus corpus;
  Generator generator(11);
  constexpr int kSamples = 20000;
  double sum = 0, sum_of_squares = 0, characters = 0, with_brackets = 0;
  for (int index = 0; index < kSamples; ++index) {
    const std::string sentence = corpus.sample(generator);
    const SentenceCheck check = corpus.check(sentence);
    ASSERT_TRUE(check.in_language && check.agreement() && check.brackets_close()) << sentence;
    ASSERT_LE(static_cast<std::int64_t>(sentence.size()), corpus.grammar().longest());
    const double surprise = -*corpus.grammar().log_probability(sentence);
    sum += surprise;
    sum_of_squares += surprise * surprise;
    characters += static_cast<double>(sentence.size());
    with_brackets += check.brackets > 0 ? 1 : 0;
  }
  const double mean = sum / kSamples;
  const double error = std::sqrt((sum_of_squares / kSamples - mean * mean) / kSamples);
  EXPECT_NEAR(mean, corpus.grammar().entropy(), 4 * error);
  EXPECT_NEAR(characters / kSamples, corpus.grammar().expected_length(), 0.5);
  EXPECT_GT(with_brackets / kSamples, 0.2);
}

TEST(Corpus, is_rich_and_fits_a_context_of_80) {
  const Corpus corpus;
  EXPECT_EQ(corpus.grammar().longest(), 68);
  EXPECT_GE(corpus.grammar().word_count(), 60);
  EXPECT_NEAR(corpus.entropy_rate(), corpus.grammar().entropy() / (corpus.grammar().expected_length() + 1),
              1e-15);
  const std::string longest = "then, each small mouse that wants the grey boat finds the grey drum.";
  EXPECT_EQ(longest.size(), 68u);
  EXPECT_TRUE(corpus.grammar().log_probability(longest).has_value());
}

TEST(Corpus, judges_agreement_across_a_distance) {
  struct Case {
    const char* sentence;
    int verbs, right;
    bool in_language;
  };
  const Corpus corpus;
  for (const auto& [sentence, verbs, right, in_language] : {
           Case{"the dog sings well.", 1, 1, true},
           Case{"the dog sing well.", 1, 0, false},
           Case{"the dogs that see a cat sing.", 2, 2, true},
           Case{"the dogs that see a cat sings.", 2, 1, false},
           Case{"the dogs that sees a cat sing.", 2, 1, false},
           Case{"the dog that the cats see sings.", 2, 2, true},
           Case{"the dog that the cats sees sings.", 2, 1, false},
           Case{"the dog that the cats see sing.", 2, 1, false},
           Case{"the dogs that emma sees sing.", 2, 2, true},
           Case{"the dogs [near leo] likes many cats.", 1, 0, false},
           Case{"emma xyz sings", 1, 1, false},
           Case{"the dogs that the cat", 0, 0, false},
           Case{"sings sings", 0, 0, false},
           Case{"that", 0, 0, false},
           Case{"", 0, 0, false},
       }) {
    const SentenceCheck check = corpus.check(sentence);
    EXPECT_EQ(check.verbs, verbs) << sentence;
    EXPECT_EQ(check.right_verbs, right) << sentence;
    EXPECT_EQ(check.in_language, in_language) << sentence;
    EXPECT_EQ(check.agreement(), verbs > 0 && verbs == right) << sentence;
  }
}

TEST(Corpus, judges_brackets) {
  struct Case {
    const char* sentence;
    int brackets, right;
  };
  const Corpus corpus;
  for (const auto& [sentence, brackets, right] :
       {Case{"emma sings.", 0, 0}, Case{"emma sings (near the inn [by the mill]).", 2, 2},
        Case{"emma sings (near the inn [by the mill)].", 3, 1}, Case{"emma sings (near", 1, 0},
        Case{")(", 2, 0}, Case{"{[()]}", 3, 3}, Case{"(]", 2, 0}}) {
    const SentenceCheck check = corpus.check(sentence);
    EXPECT_EQ(check.brackets, brackets) << sentence;
    EXPECT_EQ(check.right_brackets, right) << sentence;
    EXPECT_EQ(check.brackets_close(), brackets == right) << sentence;
  }
}

TEST(Corpus, floor_is_the_mean_over_targets_with_the_end) {
  const Corpus corpus;
  const std::vector<std::string> sentences = {"emma sings well.", "the dog sings well."};
  const double expected =
      -(*corpus.grammar().log_probability(sentences[0]) + *corpus.grammar().log_probability(sentences[1])) /
      (17 + 20);
  EXPECT_NEAR(corpus.mean_negative_log_probability(sentences), expected, 1e-12);
  EXPECT_THROW(corpus.mean_negative_log_probability(std::vector<std::string>{"no"}), Error);
  EXPECT_THROW(corpus.mean_negative_log_probability({}), Error);
}

TEST(Corpus, overlap_counts_validation_sentences) {
  const std::vector<std::string> training = {"a", "b", "b"}, validation = {"b", "c", "b", "d"};
  EXPECT_EQ(overlap(training, validation), 0.5);
  EXPECT_EQ(overlap(training, {}), 0);
}

}  // namespace
}  // namespace needle
