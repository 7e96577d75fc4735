// The program's instruments, tasks and comparisons, as a user runs them.
#include "tests/program.h"

namespace needle {
namespace {

TEST_F(ProgramTest, CheckShowsWhoReadsWhom) {
  const Result shown =
      run({"check", "--window", "3", "--layers", "2", "--length", "8", "--svg", "check.svg"});
  EXPECT_EQ(shown.code, 0) << shown.errors;
  for (const char* part :
       {"causal: no position reads the future", "reads 5 of 8", "a span of 5", "8  ······██████████"})
    EXPECT_TRUE(contains(shown.output, part));
  for (const char* part : {"<svg", "output", "input", "does not read"})
    EXPECT_TRUE(contains(read_file(folder_ / "check.svg"), part));
  const Result object = run({"check", "--length", "4", "--json"});
  const nlohmann::json json = nlohmann::json::parse(object.output);
  EXPECT_EQ(json.at("reads").at(1), nlohmann::json({1, 1, 0, 0}));
  EXPECT_EQ(json.at("first_change"), nlohmann::json({1, 2, 3, 4}));
  EXPECT_TRUE(json.at("causal").get<bool>());
}

TEST_F(ProgramTest, AttentionShowsTheWeightsOfAHead) {
  ASSERT_EQ(run(training("run", 5)).code, 0);
  Arguments looking{"attention", "--checkpoint", "run", "--text", "anna", "--head", "1", "--svg", "head.svg"};
  const Result shown = run(looking);
  EXPECT_EQ(shown.code, 0) << shown.errors;
  for (const char* part : {"blocks.0.attention, head 1 of 2", "BOS", "1.000", "·"})
    EXPECT_TRUE(contains(shown.output, part));
  for (const char* part : {"<svg", ">BOS<", ">n<", "query", "key"})
    EXPECT_TRUE(contains(read_file(folder_ / "head.svg"), part));
  looking.push_back("--json");
  const nlohmann::json json = nlohmann::json::parse(run(looking).output);
  EXPECT_EQ(json.at("keys"), nlohmann::json({"BOS", "a", "n", "n", "a"}));
  EXPECT_EQ(json.at("weights").at(0), nlohmann::json({1, 0, 0, 0, 0}));
  for (const auto& [option, value, part] :
       std::vector<std::array<std::string, 3>>{{"--layer", "1", "layers are 0 to 0"},
                                               {"--head", "2", "heads are 0 to 1"},
                                               {"--text", "annaannaanna", "context"},
                                               {"--text", "zoe", "'z'"}}) {
    Arguments wrong{"attention", "--checkpoint", "run"};
    if (option != "--text") wrong.insert(wrong.end(), {"--text", "anna"});
    wrong.insert(wrong.end(), {option, value});
    const Result result = run(wrong);
    EXPECT_EQ(result.code, 2) << option;
    EXPECT_TRUE(contains(result.errors, part));
    EXPECT_EQ(std::count(result.errors.begin(), result.errors.end(), '\n'), 1) << result.errors;
  }
}

TEST_F(ProgramTest, CompareKeepsFinishedRunsAndWritesAReport) {
  const Arguments comparing{"compare",    "--distance=4", "--models=lstm,convolution",
                            "--steps=4",  "--batch=4",    "--parameters=4000",
                            "--layers=2", "--heads=2",    "--learning-rates=0.001,0.01",
                            "--seeds=2",  "--threads=1",  "--out=comparison"};
  const Result first = run(comparing);
  ASSERT_EQ(first.code, 0) << first.errors;
  for (const char* part : {"lstm", "convolution", "accuracy", "report.html"})
    EXPECT_TRUE(contains(first.output, part));
  const std::string report = read_file(folder_ / "comparison/report.html");
  for (const char* part : {"who reads whom", "Validation loss by time", "--models=lstm,convolution"})
    EXPECT_TRUE(contains(report, part));
  const auto file = folder_ / "comparison/runs/recall/lstm-search-rate-0.01-seed-1.json";
  const auto written = std::filesystem::last_write_time(file);
  Arguments as_json = comparing;
  as_json.push_back("--json");
  const Result again = run(as_json);
  EXPECT_EQ(again.code, 0) << again.errors;
  EXPECT_EQ(std::filesystem::last_write_time(file), written);
  EXPECT_TRUE(contains(again.output, "\"family\":\"lstm\""));
  Arguments other = comparing;
  other.push_back("--kernel=2");
  EXPECT_TRUE(contains(run(other).errors, "other settings"));
  EXPECT_EQ(run({"compare", "--tasks", "shapes"}).code, 2);
  EXPECT_EQ(run({"compare", "--budget", "luck"}).code, 2);
}

TEST_F(ProgramTest, ATaskIsTrainedOnWithRoomForItsRowsAndGoesOn) {
  const Arguments small{"--width=8", "--heads=2",          "--layers=1",
                        "--batch=2", "--evaluate-every=2", "--threads=1"};
  Arguments first{"train", "--task", "recall", "--distance=90", "--steps=2", "--out=run"};
  first.insert(first.end(), small.begin(), small.end());
  const Result result = run(first);
  ASSERT_EQ(result.code, 0) << result.errors;
  for (const char* part : {"recall: generated", "context 181", "none: the task recall"})
    EXPECT_TRUE(contains(result.output, part));
  const Result again = run({"train", "--resume", "run", "--json"});
  EXPECT_EQ(again.code, 0) << again.errors;
  for (const char* part : {"\"distance\":90", "\"source\":\"recall\""})
    EXPECT_TRUE(contains(again.output, part));
}

TEST_F(ProgramTest, CostShowsFormulasBesideWhatWasCounted) {
  const Arguments small{"cost", "--layers", "2", "--width", "16", "--heads",
                        "2",    "--length", "8", "--batch", "2"};
  const Result table = run(small);
  ASSERT_EQ(table.code, 0) << table.errors;
  for (const char* part : {"scores and mixing", "equal", "the mask allows 56.2 % of the pairs", "T = 32",
                           "kept for the backward pass", "bytes remembered"})
    EXPECT_TRUE(contains(table.output, part)) << table.output;
  EXPECT_FALSE(contains(table.output, "NOT EXPLAINED"));
  Arguments json = small;
  json.push_back("--json");
  const nlohmann::json object = nlohmann::json::parse(run(json).output);
  EXPECT_EQ(object.at("parts").at(1).at("formula"), 2 * 4 * 2 * 8 * 8 * 16);
  EXPECT_EQ(object.at("parts").at(1).at("counted"), 2 * 2 * 2 * 8 * 9 * 16);
  EXPECT_EQ(object.at("growth").at(2).at("counted"), object.at("growth").at(2).at("formula"));
  EXPECT_EQ(object.at("decoding").at(1).at("counted"), 15 * 8 + 15 * 16 / 2);
  EXPECT_GT(object.at("backward").at("bytes_read"), object.at("forward").at("bytes_kept"));
  const Result large = run({"cost", "--layers", "24", "--width", "1024", "--heads", "16", "--length", "2048",
                            "--new-tokens", "1"});
  EXPECT_EQ(large.code, 0) << large.errors;
  for (const char* part : {"too large to run", "402,653,184"})
    EXPECT_TRUE(contains(large.output, part)) << large.output;
}

}  // namespace
}  // namespace needle
