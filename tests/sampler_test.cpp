// Choosing a token from logits: temperature, filters, penalty, and what is impossible.
#include "needle/generate/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "tests/agree.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Logits = std::vector<float>;
using Ids = std::vector<std::int64_t>;

/// Logits whose softmax these are.
Logits logits_of(const std::vector<double>& chances) {
  Logits logits;
  for (const double chance : chances) logits.push_back(static_cast<float>(std::log(chance)));
  return logits;
}

/// Ids that can still be drawn.
Ids kept(const std::vector<double>& chances) {
  Ids ids;
  for (std::size_t id = 0; id < chances.size(); ++id) {
    if (chances[id] > 0) ids.push_back(static_cast<std::int64_t>(id));
  }
  return ids;
}

SamplerSettings with(auto change) {
  SamplerSettings settings;
  change(settings);
  return settings;
}

TEST(Sampler, BR058_TemperatureZeroIsGreedyAndTinyOnesStayFinite) {
  const Logits logits{0, 100, 99};
  Generator random(1);
  for (const double temperature : {0.0, 1e-8, 1e-39, 5e-324}) {
    EXPECT_EQ(sample(logits, {temperature}, random), 1);
    const std::vector<double> chances = probabilities(logits, {temperature});
    EXPECT_EQ(chances, (std::vector<double>{0, 1, 0})) << temperature;
  }
  const std::vector<double> chances = probabilities(logits, {1});
  EXPECT_NEAR(chances[0], 2.7195934554254203e-44, 1e-50);
  EXPECT_NEAR(chances[1], 0.7310585786300049, 1e-15);
  EXPECT_NEAR(chances[2], 0.26894142136999516, 1e-15);
  for (const double temperature : {kNotANumber, -1.0})
    EXPECT_TRUE(contains(error_of([&] { sample(logits, {temperature}, random); }), {"temperature"}));
  const std::vector<double> hot = probabilities(logits, {std::numeric_limits<double>::infinity()});
  for (const double chance : hot) EXPECT_NEAR(chance, 1.0 / 3, 1e-15);
  EXPECT_EQ(probabilities(Logits{0, -kInfinity, 5}, {std::numeric_limits<double>::infinity()}),
            (std::vector<double>{0.5, 0, 0.5}));
}

TEST(Sampler, BR061_NaNIsAnErrorAndIdsWithoutTextAreNeverDrawn) {
  Generator random(1);
  const Logits bad{static_cast<float>(kNotANumber), 1, 2}, none{-kInfinity, -kInfinity};
  EXPECT_TRUE(contains(error_of([&] { sample(bad, {}, random); }), {"id 0", "not a number"}));
  EXPECT_TRUE(contains(error_of([&] { sample(none, {}, random); }), {"finite"}));
  const Logits padded{0, 1, 2, 3, 4, 9, 9, 9};
  SamplerSettings settings{0, 5};
  EXPECT_EQ(sample(padded, settings, random), 4);
  settings.temperature = 1;
  const std::vector<double> chances = probabilities(padded, settings);
  for (std::size_t id = 5; id < 8; ++id) EXPECT_EQ(chances[id], 0);
  for (int i = 0; i < 200; ++i) EXPECT_LT(sample(padded, settings, random), 5);
}

TEST(Sampler, GreedyTakesTheFirstOfEquals) {
  Generator random(1);
  EXPECT_EQ(sample(Logits{1, 3, 3, 2}, {0}, random), 1);
  EXPECT_EQ(random.position(), 0) << "greedy uses no random number";
}

TEST(Sampler, DrawsByTheProbabilities) {
  const Logits logits{0, std::log(2.0f), std::log(5.0f), -kInfinity};
  for (const double temperature : {1.0, 2.0, 0.5}) {
    const std::vector<double> chances = probabilities(logits, {temperature});
    EXPECT_NEAR(chances[2] / chances[0], std::pow(5, 1 / temperature), 1e-5);
    EXPECT_EQ(chances[3], 0);
    Generator random(7);
    constexpr int kDraws = 20000;
    std::vector<int> counts(4);
    for (int i = 0; i < kDraws; ++i)
      ++counts[static_cast<std::size_t>(sample(logits, {temperature}, random))];
    for (std::size_t id = 0; id < 4; ++id) {
      const double deviation = std::sqrt(kDraws * chances[id] * (1 - chances[id]));
      EXPECT_NEAR(counts[id], kDraws * chances[id], 5 * deviation);
    }
  }
}

TEST(Sampler, BR056_TheNucleusHoldsTheTokenThatReachesIt) {
  struct Row {
    std::vector<double> chances;
    double top_p;
    Ids kept;
  };
  for (const Row& row :
       {Row{{0.5, 0.35, 0.1, 0.05}, 0.9, {0, 1, 2}}, Row{{0.4, 0.3, 0.2, 0.1}, 0.8, {0, 1, 2}},
        Row{{0.5, 0.3, 0.15, 0.05}, 0.6, {0, 1}}, Row{{0.1, 0.6, 0.3}, 0.0, {1}},
        Row{{0.1, 0.6, 0.3}, 1e-8, {1}}, Row{{0.1, 0.6, 0.3}, 1.0, {0, 1, 2}}}) {
    const auto chances =
        probabilities(logits_of(row.chances), with([&](SamplerSettings& s) { s.top_p = row.top_p; }));
    EXPECT_EQ(kept(chances), row.kept) << row.top_p;
  }
  const auto chances =
      probabilities(logits_of({0.5, 0.35, 0.1, 0.05}), with([](SamplerSettings& s) { s.top_p = 0.9; }));
  EXPECT_NEAR(chances[0], 0.5263157894736842, 1e-7);
  EXPECT_NEAR(chances[1], 0.3684210526315789, 1e-7);
  EXPECT_NEAR(chances[2], 0.10526315789473685, 1e-7);
  for (const double bad : {-0.1, 1.1, kNotANumber}) {
    EXPECT_TRUE(contains(error_of([&] { check(with([&](SamplerSettings& s) { s.top_p = bad; })); }),
                         {"top-p", "[0, 1]"}));
  }
}

TEST(Sampler, TheNucleusIsThatOfAFullSort) {
  Generator random(5);
  for (int round = 0; round < 200; ++round) {
    Logits logits(1 + static_cast<std::size_t>(random.below(40)));
    for (float& logit : logits) logit = static_cast<float>(4 * random.uniform());
    const double top_p = random.uniform();
    const std::vector<double> all = probabilities(logits, {});
    std::vector<std::pair<double, std::int64_t>> order;
    for (std::size_t id = 0; id < all.size(); ++id) order.emplace_back(-all[id], id);
    std::sort(order.begin(), order.end());
    std::set<std::int64_t> wanted;
    double sum = 0;
    for (const auto& [chance, id] : order) {
      if (!wanted.empty() && sum >= top_p) break;
      wanted.insert(id);
      sum -= chance;
    }
    EXPECT_EQ(kept(probabilities(logits, with([&](SamplerSettings& s) { s.top_p = top_p; }))),
              Ids(wanted.begin(), wanted.end()));
  }
}

TEST(Sampler, BR057_TopKOfAnySizeKeepsThatMany) {
  struct Row {
    Logits logits;
    std::int64_t top_k;
    Ids kept;
  };
  for (const Row& row : {Row{{1, 3, 2}, 5, {0, 1, 2}}, Row{{1, 3, 2}, 3, {0, 1, 2}}, Row{{1, 3, 2}, 1, {1}},
                         Row{{1, 3, 2}, 2, {1, 2}}, Row{{1, 3, 2}, 0, {0, 1, 2}}, Row{{2, 2, 1}, 1, {0}}}) {
    const auto chances = probabilities(row.logits, with([&](SamplerSettings& s) { s.top_k = row.top_k; }));
    EXPECT_EQ(kept(chances), row.kept) << row.top_k;
    EXPECT_NEAR(std::accumulate(chances.begin(), chances.end(), 0.0), 1, 1e-15);
  }
  EXPECT_TRUE(
      contains(error_of([] { check(with([](SamplerSettings& s) { s.top_k = -1; })); }), {"top-k", "-1"}));
}

TEST(Sampler, MinPKeepsWhatIsLikelyBesideTheLikeliest) {
  const Logits logits = logits_of({0.5, 0.26, 0.2, 0.04});
  for (const auto& [min_p, ids] : {std::pair(0.0, Ids{0, 1, 2, 3}), std::pair(0.3, Ids{0, 1, 2}),
                                   std::pair(0.5, Ids{0, 1}), std::pair(1.0, Ids{0})}) {
    EXPECT_EQ(kept(probabilities(logits, with([&](SamplerSettings& s) { s.min_p = min_p; }))), ids) << min_p;
  }
  EXPECT_TRUE(contains(error_of([] { check(with([](SamplerSettings& s) { s.min_p = 2; })); }), {"min-p"}));
}

TEST(Sampler, FiltersFollowOneAnother) {
  // Of three, 5/9.5 reaches the half: one stays.
  const Logits logits = logits_of({0.5, 0.3, 0.15, 0.05});
  SamplerSettings settings;
  settings.top_k = 3;
  settings.top_p = 0.5;
  EXPECT_EQ(kept(probabilities(logits, settings)), Ids{0});
  settings.top_p = 0.55;
  EXPECT_EQ(kept(probabilities(logits, settings)), (Ids{0, 1}));
  settings.min_p = 0.9;
  EXPECT_EQ(kept(probabilities(logits, settings)), Ids{0});
  settings.temperature = 0;
  EXPECT_EQ(kept(probabilities(logits, settings)), Ids{0});
}

TEST(Sampler, ARepetitionPenaltyWeakensWhatTheRowHolds) {
  const Logits logits{2, -1, 1, 0};
  SamplerSettings settings;
  settings.repetition_penalty = 2;
  const Ids past{0, 1, 0, 7};  // each id counts once, and one past the table not at all
  const auto chances = probabilities(logits, settings, past);
  EXPECT_NEAR(chances[0] / chances[2], 1, 1e-12);               // 2 / 2 beside 1
  EXPECT_NEAR(chances[1] / chances[3], std::exp(-2.0), 1e-12);  // -1 * 2 beside 0
  Generator random(1);
  settings.temperature = 0;
  settings.repetition_penalty = 3;
  EXPECT_EQ(sample(logits, settings, random, past), 2);
  settings.repetition_penalty = 1e-310;  // 2 divided by it is no number any more
  EXPECT_TRUE(contains(error_of([&] { probabilities(logits, settings, past); }), {"finite"}));
  for (const double bad : {0.0, -1.0, kNotANumber}) {
    settings.repetition_penalty = bad;
    EXPECT_TRUE(contains(error_of([&] { check(settings); }), {"repetition penalty"}));
  }
}

TEST(Sampler, LogProbabilitiesAreThoseOfTheModel) {
  const std::vector<double> logs = log_probabilities(Logits{1000, 1000 + std::log(3.0f), -kInfinity});
  EXPECT_NEAR(logs[0], std::log(0.25), 1e-4);
  EXPECT_NEAR(logs[1], std::log(0.75), 1e-4);
  EXPECT_EQ(logs[2], -std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace needle
