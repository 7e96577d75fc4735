// `needle inside` and `needle train --watch`, as a user runs them.
#include "needle/train/watch.h"
#include "tests/program.h"

namespace needle {
namespace {

TEST_F(ProgramTest, InsideShowsAStepInOrder) {
  const Result shown = run({"inside", "--layers", "1", "--width", "16", "--heads", "2", "--length", "6"});
  EXPECT_EQ(shown.code, 0) << shown.errors;
  for (const char* part : {"blocks.0", "attention", "layer_norm", "cross_entropy", "parameters", "moments",
                           "ms forward", "adamw"})
    EXPECT_TRUE(contains(shown.output, part));
  const Result folded = run({"inside", "--layers", "2", "--width", "16", "--heads", "2", "--depth", "1"});
  EXPECT_TRUE(contains(folded.output, "blocks.1"));
  EXPECT_FALSE(contains(folded.output, "[16, 64]"));
  const Result part =
      run({"inside", "--layers", "2", "--width", "16", "--heads", "2", "--only", "blocks.1.ffn"});
  EXPECT_TRUE(contains(part.output, "blocks.1"));
  EXPECT_FALSE(contains(part.output, "blocks.0"));
}

TEST_F(ProgramTest, InsideWritesPageGraphTraceAndJson) {
  const Result shown =
      run({"inside", "--layers", "1", "--width", "16", "--heads", "2", "--length", "6", "--html", "page.html",
           "--dot", "graph.dot", "--trace", "trace.json", "--entry", "blocks.0.ffn.up.weight:3,5"});
  ASSERT_EQ(shown.code, 0) << shown.errors;
  const std::string page = read_file(folder_ / "page.html");
  for (const char* part : {"<!DOCTYPE html>", "blocks.0.ffn.up.weight", "needle inside", "compute"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  EXPECT_EQ(page.find("https://"), std::string::npos) << "it reads nothing from elsewhere";
  EXPECT_LT(page.size(), 5u << 20);
  EXPECT_NE(read_file(folder_ / "graph.dot").find("subgraph"), std::string::npos);
  EXPECT_NE(read_file(folder_ / "trace.json").find("\"optimizer\""), std::string::npos);
  for (const char* order : {"--seed", "--second"}) {
    Arguments arguments{"inside", "--layers", "1", "--width", "8",  "--heads",
                        "2",      "--length", "4", "--json",  order};
    if (std::string(order) == "--seed") arguments.push_back("3");
    const Result object = run(arguments);
    ASSERT_EQ(object.code, 0) << object.errors;
    const nlohmann::json json = nlohmann::json::parse(object.output);
    EXPECT_GT(json.at("ops").size(), 10u);
    ASSERT_GT(json.at("numbers").size(), 3u);
    double largest = 0;
    for (const auto& number : json.at("numbers"))
      largest = std::max(largest, std::abs(number.at("gradient").get<double>()));
    for (const auto& number : json.at("numbers"))
      EXPECT_NEAR(number.at("difference").get<double>(), 0, 1e-6 * largest);
  }
}

TEST_F(ProgramTest, InsideRefusesWhatItCannotShow) {
  for (const auto& [arguments, part] : std::vector<std::pair<Arguments, std::string>>{
           {{"--only", "blocks.9"}, "blocks.9"},
           {{"--text", "anna"}, "--checkpoint"},
           {{"--entry", "token_embedding.weight:1,1"}, "--html"},
           {{"--source", "anna"}, "--text"},
           {{"--entry", "token_embedding.weight:1x1", "--json"}, "NAME:INDEX"},
           {{"--entry", "nothing:1", "--json"}, "nothing"},
           {{"--entry", "token_embedding.weight:1,2,3", "--json"}, "shape"},
           {{"--entry", "token_embedding.weight:1,x", "--json"}, "NAME:INDEX"},
           {{"--batch", "0"}, "--batch"},
           {{"--checkpoint", "nowhere"}, "nowhere"},
           {{"--html", "no/such/folder/page.html"}, "no/such"}}) {
    Arguments all{"inside", "--layers", "1", "--width", "8", "--heads", "2", "--length", "4"};
    if (arguments.front() == "--checkpoint" || arguments.front() == "--text") all = {"inside"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const Result result = run(all);
    EXPECT_EQ(result.code, 2) << part;
    EXPECT_EQ(result.output, "") << part;
    EXPECT_TRUE(contains(result.errors, part)) << result.errors;
    EXPECT_EQ(std::count(result.errors.begin(), result.errors.end(), '\n'), 1) << result.errors;
  }
}

TEST_F(ProgramTest, AWatchedRunIsTheSameRun) {
  ASSERT_EQ(run(training("plain", 6)).code, 0);
  Arguments watched = training("watched", 6);
  watched.insert(watched.end(), {"--watch", "2"});
  ASSERT_EQ(run(watched).code, 0);
  EXPECT_EQ(losses_without_speed("plain"), losses_without_speed("watched"));

  std::map<std::string, int> rows;
  std::set<std::int64_t> steps;
  for (const WatchRow& row : read_watch(folder_ / "watched" / "watch.csv")) {
    ++rows[row.quantity];
    steps.insert(row.step);
    EXPECT_TRUE(std::isfinite(row.value) && row.value >= 0) << row.layer << ' ' << row.quantity;
    EXPECT_TRUE(row.quantity != "dead units" || row.value <= 1);
  }
  EXPECT_EQ(steps, (std::set<std::int64_t>{1, 3, 5}));
  for (const char* quantity :
       {"gradient norm", "update to weight", "activation spread", "dead units", "attention entropy"})
    EXPECT_GT(rows[quantity], 0) << quantity;

  const Result page = run({"inside", "--checkpoint", "watched", "--text", "anna", "--html", "page.html"});
  ASSERT_EQ(page.code, 0) << page.errors;
  EXPECT_NE(read_file(folder_ / "page.html").find("attention entropy"), std::string::npos);
  EXPECT_EQ(run({"train", "--resume", "watched", "--watch", "-1"}).code, 2);
  for (const char* option : {"--anomaly", "--graph"}) {  // refused before the old run is removed
    Arguments refused = training("watched", 5);
    refused.insert(refused.end(), {"--overwrite", "--watch", "5", option});
    EXPECT_EQ(run(refused).code, 2);
    EXPECT_TRUE(fs::exists(folder_ / "watched" / "step-6"));
  }

  // A row that a crash cut short is left out; one that says nothing is an error; a new run forgets them all.
  std::ofstream(folder_ / "watched" / "watch.csv", std::ios::app) << "7,blocks.0,dead";
  EXPECT_EQ(run({"inside", "--checkpoint", "watched", "--json"}).code, 0);
  std::ofstream(folder_ / "watched" / "watch.csv", std::ios::app) << " units,,x\n";
  const Result damaged = run({"inside", "--checkpoint", "watched", "--json"});
  EXPECT_EQ(damaged.code, 2);
  EXPECT_TRUE(contains(damaged.errors, "watch.csv"));
  Arguments again = training("watched", 5);
  again.push_back("--overwrite");
  ASSERT_EQ(run(again).code, 0);
  EXPECT_FALSE(fs::exists(folder_ / "watched" / "watch.csv"));
}

TEST_F(ProgramTest, AStepOfSeveralBatchesIsWatchedAsOne) {
  Arguments watched = training("watched", 3);
  watched.insert(watched.end(), {"--watch", "1", "--accumulate", "2"});
  ASSERT_EQ(run(watched).code, 0);
  std::set<std::tuple<std::int64_t, std::string, std::string, int>> seen;
  for (const WatchRow& row : read_watch(folder_ / "watched" / "watch.csv"))
    EXPECT_TRUE(seen.emplace(row.step, row.layer, row.quantity, row.head).second)
        << row.layer << ' ' << row.quantity;
}

}  // namespace
}  // namespace needle
