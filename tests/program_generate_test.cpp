// `needle generate` as a user runs it.
#include <cmath>

#include "tests/agree.h"
#include "tests/program.h"

namespace needle {
namespace {

std::vector<nlohmann::json> objects_of(const std::string& output) {
  std::vector<nlohmann::json> objects;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) objects.push_back(nlohmann::json::parse(line));
  return objects;
}

class GenerateProgramTest : public ProgramTest {
 protected:
  GenerateProgramTest() { EXPECT_EQ(run(training("names", 5)).code, 0); }
  Result generate(Arguments more) const {
    Arguments all{"generate", "--checkpoint", "names", "--threads=1"};
    all.insert(all.end(), more.begin(), more.end());
    return run(all);
  }
  void write(const char* name, const std::string& text) const { std::ofstream(folder_ / name) << text; }
};

TEST_F(GenerateProgramTest, EveryWayToComputeGivesTheSameTexts) {
  write("prompts", "an\n\nclar\n");
  const Arguments base{"--prompt-file", "prompts", "--count", "2", "--temperature", "1.5"};
  const Result first = generate(base);
  ASSERT_EQ(first.code, 0) << first.errors;
  EXPECT_EQ(std::count(first.output.begin(), first.output.end(), '\n'), 6) << first.output;
  for (const Arguments& change : {Arguments{"--no-cache"},
                                  {"--chunk", "1"},
                                  {"--batch", "1"},
                                  {"--padding", "right"},
                                  {"--cache", "f32"}}) {
    Arguments all = base;
    all.insert(all.end(), change.begin(), change.end());
    EXPECT_EQ(generate(all).output, first.output) << change[0];
  }
  const Result alone = generate({"--prompt", "an", "--new-tokens", "4", "--no-end"});
  for (const char* part :
       {"prompt", "first token", "decoding", "cache", "15 a layer and head counted", "GP + G(G+1)/2 = 15"})
    EXPECT_TRUE(contains(alone.errors, part)) << alone.errors;
  EXPECT_EQ(generate({"--prompt-file", "prompts", "--count", "2", "--seed", "2"}).code, 0);
}

TEST_F(GenerateProgramTest, JsonTellsIdsChancesAlternativesAndWhyARowEnded) {
  const Result result =
      generate({"--prompt", "an", "--json", "--alternatives", "3", "--new-tokens", "4", "--no-end"});
  const nlohmann::json object = objects_of(result.output).at(0);
  EXPECT_EQ(object.at("ended"), "length") << result.errors;
  EXPECT_EQ(object.at("ids").size(), 4u);
  EXPECT_EQ(object.at("log_probabilities").size(), 4u);
  EXPECT_EQ(object.at("alternatives").at(3).size(), 3u);
  EXPECT_LT(object.at("alternatives").at(0).at(0).at("log_probability").get<double>(), 0);
  EXPECT_TRUE(object.at("text").get<std::string>().starts_with("an"));
  EXPECT_EQ(objects_of(generate({"--prompt", "an", "--json", "--no-end"}).output).at(0).at("ended"),
            "context");
  EXPECT_EQ(objects_of(generate({"--prompt-ids", "1,3,4", "--json"}).output).size(), 1u);
}

TEST_F(GenerateProgramTest, ScoresAddUpToTheLossOfEvaluate) {
  const nlohmann::json loss =
      objects_of(run({"evaluate", "--checkpoint", "names", "--lines", "names.txt", "--json"}).output).at(0);
  const std::vector<nlohmann::json> scores = objects_of(generate({"--score", "names.txt", "--json"}).output);
  ASSERT_EQ(scores.size(), 11u);
  EXPECT_EQ(scores.back().at("tokens"), loss.at("targets"));
  EXPECT_NEAR(scores.back().at("perplexity").get<double>(), loss.at("perplexity").get<double>(), 1e-4);
  EXPECT_TRUE(contains(generate({"--score", "names.txt"}).output, "perplexity"));
}

TEST_F(GenerateProgramTest, SearchesStopsAndSlides) {
  const Result beams = generate({"--prompt", "an", "--beams", "3", "--json"});
  ASSERT_EQ(objects_of(beams.output).size(), 3u) << beams.errors;
  EXPECT_GE(objects_of(beams.output)[0].at("score").get<double>(),
            objects_of(beams.output)[2].at("score").get<double>());
  const Result slides =
      generate({"--prompt", "an", "--overflow", "recompute", "--no-end", "--new-tokens", "30", "--json"});
  EXPECT_EQ(objects_of(slides.output).at(0).at("ids").size(), 30u) << slides.errors;
  const std::string whole = objects_of(slides.output).at(0).at("text");
  const Result stopped = generate({"--prompt", "an", "--overflow", "recompute", "--no-end", "--new-tokens",
                                   "30", "--json", "--stop", whole.substr(5, 2)});
  EXPECT_EQ(objects_of(stopped.output).at(0).at("ended"), "stop_string") << stopped.errors;
  EXPECT_FALSE(
      contains(objects_of(stopped.output).at(0).at("text").get<std::string>().substr(2), whole.substr(5, 2)));
}

TEST_F(GenerateProgramTest, AsksForPromptsUntilTheInputEnds) {
  write("input", "an\nQ\ncl\n");
  const std::string command = std::string("cd ") + folder_.path().string() + " && " + NEEDLE_PROGRAM +
                              " generate --checkpoint names --interactive < input > answers 2> complaints";
  ASSERT_EQ(std::system(command.c_str()), 0);
  const std::string answers = read_file(folder_ / "answers");
  EXPECT_EQ(std::count(answers.begin(), answers.end(), '\n'), 2) << answers;
  EXPECT_TRUE(contains(read_file(folder_ / "complaints"), "'Q'")) << "and goes on";
}

TEST_F(GenerateProgramTest, ImpossibleRequestsAreOneLineAndCode2) {
  write("empty", "");
  write("unknown", "an\nQ\n");
  for (const auto& [more, complaint] : std::vector<std::pair<Arguments, const char*>>{
           {{"--temperature", "-1"}, "temperature"},
           {{"--top-p", "1.5"}, "top-p"},
           {{"--top-k", "-2"}, "top-k"},
           {{"--min-p", "nan"}, "min-p"},
           {{"--repetition-penalty", "0"}, "repetition penalty"},
           {{"--prompt", "an", "--prompt-ids", "1"}, "one of --prompt"},
           {{"--prompt-ids", "99"}, "99"},
           {{"--prompt", "annaannaanna"}, "context of 8"},
           {{"--prompt-file", "empty"}, "no prompt"},
           {{"--prompt-file", "unknown"}, "unknown, line 2"},
           {{"--prompt-file", "nowhere"}, "nowhere"},
           {{"--score", "empty"}, "holds no token"},
           {{"--beams", "2", "--count", "2"}, "--count"},
           {{"--stop", ""}, "stop string"},
           {{"--overflow", "wrap"}, "recompute"}}) {
    const Result result = generate(more);
    EXPECT_EQ(result.code, 2) << more[0];
    EXPECT_TRUE(contains(result.errors, complaint)) << result.errors;
    EXPECT_EQ(std::count(result.errors.begin(), result.errors.end(), '\n'), 1) << result.errors;
  }
}

TEST_F(GenerateProgramTest, BenchMeasuresTokens) {
  const Result result = run({"bench", "generate", "--work", "W1", "--batch", "1,2", "--prompt", "3",
                             "--new-tokens", "5", "--rounds", "1", "--json"});
  const std::vector<nlohmann::json> rows = objects_of(result.output);
  ASSERT_EQ(rows.size(), 2u) << result.errors;
  EXPECT_GT(rows[0].at("share_of_bandwidth").get<double>(), 0);
  EXPECT_EQ(rows[0].at("allocations_after_two_tokens"), 0);
  EXPECT_EQ(run({"bench", "generate", "--work", "W9"}).code, 2);
}

}  // namespace
}  // namespace needle
