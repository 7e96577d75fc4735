// Beam search against all answers there are, the scores of given text, and text as it streams.
#include <gtest/gtest.h>

#include <cmath>

#include "needle/generate/beam.h"
#include "needle/generate/score.h"
#include "needle/generate/text_stream.h"
#include "tests/agree.h"
#include "tests/token_models.h"

namespace needle {
namespace {

class BeamScoreTest : public OnDevice {
 protected:
  Decoder model() const { return make_decoder(various_decoders()[0].config, device(), DType::f32); }

  /// log P of what follows a row, by a full pass.
  std::vector<double> chances_after(Decoder& of, const TokenRow& row) const {
    return log_probabilities(logits_alone(of, row, device())[-1].to_vector<float>());
  }
};

TEST_P(BeamScoreTest, AWideSearchFindsTheBestOfAllAnswers) {
  constexpr std::int64_t kVocabulary = 13, kEnd = 4;
  Decoder decoder = model();
  const TokenRow prompt{1, 9};
  // All answers of up to two tokens.
  std::vector<Beam> all;
  const std::vector<double> first = chances_after(decoder, prompt);
  for (std::int64_t a = 0; a < kVocabulary; ++a) {
    const double log = first[static_cast<std::size_t>(a)];
    if (a == kEnd) {
      all.push_back({{a}, log});
      continue;
    }
    TokenRow row = prompt;
    row.push_back(a);
    const std::vector<double> second = chances_after(decoder, row);
    for (std::int64_t b = 0; b < kVocabulary; ++b)
      all.push_back({{a, b}, log + second[static_cast<std::size_t>(b)]});
  }
  for (const double penalty : {0.0, 1.0}) {
    for (Beam& beam : all)
      beam.score = beam.log_probability / std::pow((5.0 + static_cast<double>(beam.ids.size())) / 6, penalty);
    std::sort(all.begin(), all.end(), [](const Beam& a, const Beam& b) { return a.score > b.score; });
    BeamSettings settings;
    settings.new_tokens = 2;
    settings.ends = {kEnd};
    settings.length_penalty = penalty;
    settings.beams = kVocabulary;
    const std::vector<Beam> found = beam_search(decoder, prompt, settings, device());
    ASSERT_EQ(found.size(), static_cast<std::size_t>(kVocabulary));
    for (std::size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(found[i].ids, all[i].ids) << i;
      EXPECT_NEAR(found[i].score, all[i].score, 1e-4);
      EXPECT_NEAR(found[i].log_probability, all[i].log_probability, 1e-4);
      EXPECT_EQ(found[i].ended, all[i].ids.back() == kEnd ? Ended::end_token : Ended::length);
    }
  }
}

TEST_P(BeamScoreTest, OneBeamIsGreedyAndTheContextEndsIt) {
  Decoder decoder = model();
  GenerateSettings greedy;
  greedy.new_tokens = 20;
  greedy.sampler.temperature = 0;
  const Answer answer = generate(decoder, {{1, 9}}, greedy, Generator(1), device())[0];
  BeamSettings settings;
  settings.beams = 1;
  settings.new_tokens = 20;
  const std::vector<Beam> found = beam_search(decoder, {1, 9}, settings, device());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].ids, answer.ids);
  EXPECT_EQ(found[0].ended, Ended::context);
  settings.vocabulary = 3;
  const Beam known = beam_search(decoder, {1, 9}, settings, device())[0];
  for (const std::int64_t id : known.ids) EXPECT_LT(id, 3);
  settings.beams = 0;
  EXPECT_TRUE(
      contains(error_of([&] { beam_search(decoder, {1}, settings, device()); }), {"at least 1 beam"}));
}

TEST_P(BeamScoreTest, ScoresAreThoseOfTheWindowsThatGenerationReads) {
  Decoder decoder = model();  // of 11 positions
  Generator random(5);
  std::vector<TokenRow> rows{{1, 4, 12}, {}, {7}, TokenRow(40), TokenRow(12)};
  for (std::size_t row = 3; row < rows.size(); ++row) {
    for (std::int64_t& id : rows[row]) id = random.below(13);
  }
  const auto scores = score(decoder, rows, device());
  ASSERT_EQ(scores.size(), rows.size());
  for (std::size_t row = 0; row < rows.size(); ++row) {
    ASSERT_EQ(scores[row].size(), rows[row].empty() ? 0 : rows[row].size() - 1);
    for (std::size_t token = 1; token < rows[row].size(); ++token) {
      const auto start = window_start(static_cast<std::int64_t>(token), 11);
      const TokenRow window(rows[row].begin() + start,
                            rows[row].begin() + static_cast<std::ptrdiff_t>(token) + 1);
      // The window tells one token more than it reads.
      const NDArray logits = logits_alone(decoder, TokenRow(window.begin(), window.end() - 1), device());
      const double wanted =
          log_probabilities(logits[-1].to_vector<float>())[static_cast<std::size_t>(window.back())];
      EXPECT_NEAR(scores[row][token - 1], wanted, 1e-4) << "row " << row << ", token " << token;
    }
  }
  EXPECT_TRUE(contains(error_of([&] { score(decoder, {{1, 13}}, device()); }), {"[0, 13)", "13"}));
  DecoderConfig bidirectional = various_decoders()[0].config;
  bidirectional.causal = false;
  Decoder encoder = make_decoder(bidirectional, device());
  EXPECT_TRUE(contains(error_of([&] { score(encoder, {{1, 2}}, device()); }), {"bidirectional"}));
}

INSTANTIATE_TEST_SUITE_P(All, BeamScoreTest, testing::ValuesIn(all_devices()), device_name);

struct Streaming {
  std::vector<std::string> stops;
  std::string text, shown;
  bool stopped;
};

TEST(TextStream, EndsBeforeTheFirstStopStringAndHoldsBackItsBeginnings) {
  for (const Streaming& row :
       {Streaming{{}, "abc", "abc", false}, Streaming{{"c"}, "abcd", "ab", true},
        Streaming{{"cd", "bcx"}, "abcd", "ab", true}, Streaming{{"cde"}, "abcd", "abcd", false},
        Streaming{{"aab"}, "aaab", "a", true}, Streaming{{"d", "bc"}, "abcd", "a", true},
        Streaming{{"é"}, "caféx", "caf", true}, Streaming{{"\xC3\xA0"}, "é", "é", false}}) {
    TextStream stream(Tokenizer::bytes(), row.stops);
    std::string shown;
    for (const std::int64_t id : Tokenizer::bytes().encode(row.text)) {
      shown += stream.push(id);
      EXPECT_TRUE(row.shown.starts_with(shown)) << "what was shown cannot be taken back: " << shown;
      if (stream.has_stopped()) break;
    }
    shown += stream.finish();
    EXPECT_EQ(shown, row.shown) << row.text;
    EXPECT_EQ(stream.has_stopped(), row.stopped) << row.text;
  }
  EXPECT_TRUE(contains(error_of([] { TextStream(Tokenizer::bytes(), {""}); }), {"stop string", "empty"}));
}

TEST(TextStream, ShowsCharactersOnceTheyAreWhole) {
  TextStream stream(Tokenizer::bytes(), {});
  EXPECT_EQ(stream.push(kFirstContentId + 0xE2), "");
  EXPECT_EQ(stream.push(kFirstContentId + 0x82), "");
  EXPECT_EQ(stream.push(kFirstContentId + 0xAC), "€");
  EXPECT_EQ(stream.push(kFirstContentId + 0xE2), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD") << "a character that was never completed";
}

}  // namespace
}  // namespace needle
