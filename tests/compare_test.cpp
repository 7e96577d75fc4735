// Comparing families of models: sizes, runs, and the report.
#include "needle/inspect/compare_report.h"
#include "needle/models/model.h"
#include "tests/agree.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

CompareSettings small_comparison() {
  CompareSettings settings;
  settings.training.data.source = DataSource::recall;
  settings.training.data.distance = 4;
  settings.training.model.context = 16;
  settings.training.model.heads = 2;
  settings.training.batch = 4;
  settings.parameters = 3000;
  settings.points = 2;
  settings.layers = 2;
  return settings;
}

TEST(Compare, FamiliesHaveAsManyParameters) {
  for (const std::int64_t parameters : {3000, 20000, 50000, 300000}) {
    CompareSettings settings = small_comparison();
    settings.parameters = parameters;
    const std::unique_ptr<Dataset> data = make_dataset(settings.training);
    for (const std::string& family : known_families()) {
      const ModelConfig model = model_of_family(family, settings, *data);
      Generator random(1);
      EXPECT_NEAR(static_cast<double>(make_model(model, random)->parameter_count()),
                  static_cast<double>(parameters), 0.05 * static_cast<double>(parameters))
          << family;
      EXPECT_EQ(model.vocabulary, data->vocabulary());
    }
  }
  CompareSettings settings = small_comparison();
  const std::unique_ptr<Dataset> data = make_dataset(settings.training);
  EXPECT_TRUE(contains(error_of([&] { model_of_family("mamba", settings, *data); }), {"mamba", "lstm"}));
  settings.parameters = 10;
  EXPECT_TRUE(contains(error_of([&] { model_of_family("lstm", settings, *data); }), {"lstm", "5 %"}));
}

TEST(Compare, ADilatedConvolutionReadsTwiceAsFarWithEachLayer) {
  CompareSettings settings = small_comparison();
  settings.layers = 6;
  const std::unique_ptr<Dataset> data = make_dataset(settings.training);
  EXPECT_EQ(model_of_family("convolution", settings, *data).receptive_field(), 13);
  EXPECT_EQ(model_of_family("dilated", settings, *data).receptive_field(), 127);
}

TEST(Compare, ImpossibleSettingsAreErrorsThatNameThem) {
  const std::pair<std::string, void (*)(CompareSettings&)> cases[] = {
      {"seeds", [](CompareSettings& s) { s.seeds = 0; }},
      {"learning rate", [](CompareSettings& s) { s.learning_rates = {}; }},
      {"learning rates", [](CompareSettings& s) { s.learning_rates = {0}; }},
      {"search-share", [](CompareSettings& s) { s.search_share = 2; }},
      {"seconds", [](CompareSettings& s) { s.seconds = 0; }},
      {"operations", [](CompareSettings& s) { s.operations = -1; }},
      {"'cnn'", [](CompareSettings& s) { s.models = {"cnn"}; }},
      {"at least one model", [](CompareSettings& s) { s.models = {}; }}};
  for (const auto& [message, change] : cases) {
    CompareSettings settings = small_comparison();
    change(settings);
    EXPECT_TRUE(contains(error_of([&] { settings.validate(); }), std::vector{message}));
  }
}

class CompareRun : public OnDevice {};

TEST_P(CompareRun, IsRepeatedToTheLastBitAndSurvivesJson) {
  const CompareSettings settings = small_comparison();
  const std::unique_ptr<Dataset> data = make_dataset(settings.training);
  const ModelConfig model = model_of_family("gru", settings, *data);
  const ComparedRun run{"gru", 3e-3, 2, 4, false};
  EXPECT_EQ(run.name(), "gru-rate-0.003-seed-2");
  std::int64_t steps = 0, seen = 0;
  const auto train = [&] {
    return run_compared(
        run, model, settings, *data, 1e6, device(), [&](std::int64_t step) { return steps = step, true; },
        [&](SequenceModel& trained) { seen = trained.parameter_count(); });
  };
  const auto result = train(), again = train();
  ASSERT_TRUE(result && again);
  EXPECT_EQ(steps, 4);
  EXPECT_EQ(seen, model.parameter_count());
  ASSERT_EQ(result->points.size(), 2u);
  EXPECT_EQ(result->points[1].operations, 4e6);
  EXPECT_EQ(result->loss, again->loss);
  EXPECT_EQ(result->points[0].validation_loss, again->points[0].validation_loss);
  EXPECT_GT(result->peak_bytes, 0);
  EXPECT_EQ(result->by_distance.size(), 2u);
  const nlohmann::json json = *result;
  EXPECT_EQ(nlohmann::json(json.get<ComparedResult>()), json);
  EXPECT_FALSE(run_compared(run, model, settings, *data, 1e6, device(), [](std::int64_t) { return false; }));
}
INSTANTIATE_TEST_SUITE_P(All, CompareRun, testing::ValuesIn(all_devices()), device_name);

TEST(Compare, SpreadIsTheMeanAndTheSampleDeviation) {
  EXPECT_EQ(spread_of({1, 2, 3}).mean, 2);
  EXPECT_EQ(spread_of({1, 2, 3}).deviation, 1);
  EXPECT_EQ(spread_of({5}).deviation, 0);
}

TEST(Compare, TheReportHoldsEverythingAndNeedsNothing) {
  ComparedResult run{
      {"lstm", 1e-3, 1, 10, false}, {{5, 1, 2, 3, 2.5, 0.5}, {10, 2, 4, 2, 1.5, 0.75}}, {{2, {3, 4}}}};
  run.loss = 1.5, run.accuracy = 0.75;
  ComparedResult other = run;
  other.accuracy = 0.25;
  ComparedFamily family{"lstm<", {}, {}, {{16, 1e6}, {32, 2e6}}, {run}, {run, other}, {"<svg>picture</svg>"}};
  EXPECT_EQ(family.by_distance()[0], (std::pair<std::int64_t, double>(2, 0.75)));
  const std::string html =
      comparison_html({{"recall", "data & more", 0.125, {family}}},
                      {small_comparison(), {}, "cpu", "needle compare --out a", "today"});
  for (const char* part : {"lstm&lt;", "data &amp; more", "50.0\u00a0±\u00a035.4", "Accuracy by distance",
                           "needle compare --out a", "<svg>picture</svg>", "chance"})
    EXPECT_TRUE(contains(html, std::vector<std::string>{part}));
  for (const char* part : {"http://", "https://", "<script"}) {
    std::string rest = html;  // but for the name of SVG's elements, which nobody fetches
    for (std::size_t at; (at = rest.find("http://www.w3.org/2000/svg")) != std::string::npos;)
      rest.erase(at, 26);
    EXPECT_EQ(rest.find(part), std::string::npos) << part;
  }
}

}  // namespace
}  // namespace needle
