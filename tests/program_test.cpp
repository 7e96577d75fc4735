// The program itself: its errors are one line and exit code 2, and a run survives Ctrl-C and being killed.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <vector>

#include "needle/io/checkpoint.h"
#include "needle/io/files.h"
#include "tests/temporary_folder.h"

namespace needle {
namespace {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

class ProgramTest : public testing::Test {
 protected:
  struct Result {
    int code = 0;
    std::string output, errors;
  };

  ProgramTest() {
    std::ofstream file(folder_ / "names.txt");
    for (const char* name : {"anna", "ben", "clara", "dan", "emma", "frank", "gina", "hugo", "ida", "jon"})
      file << name << '\n';
  }

  /// Starts the program inside the folder.
  pid_t start(const Arguments& arguments) const {
    std::vector<char*> raw{const_cast<char*>(NEEDLE_PROGRAM)};
    for (const std::string& argument : arguments) raw.push_back(const_cast<char*>(argument.c_str()));
    raw.push_back(nullptr);
    const pid_t child = ::fork();
    if (child != 0) return child;
    const auto redirect = [](const char* name, int descriptor) {
      ::dup2(::open(name, O_WRONLY | O_CREAT | O_TRUNC, 0666), descriptor);
    };
    if (::chdir(folder_.path().c_str()) != 0) ::_exit(126);
    redirect("output", STDOUT_FILENO);
    redirect("errors", STDERR_FILENO);
    ::execv(NEEDLE_PROGRAM, raw.data());
    ::_exit(127);
  }

  Result wait(pid_t child) const {
    int status = 0;
    ::waitpid(child, &status, 0);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    return {code, read_file(folder_ / "output"), read_file(folder_ / "errors")};
  }

  Result run(const Arguments& arguments) const { return wait(start(arguments)); }

  /// `train` on the names with a tiny model.
  static Arguments training(const std::string& out, int steps,
                            const Arguments& more = {"--save-every", "5"}) {
    Arguments all{"train", "--lines", "names.txt", "--steps", std::to_string(steps)};
    if (!out.empty()) all.insert(all.end(), {"--out", out});
    for (const char* option : {"--context=8", "--width=8", "--heads=2", "--layers=1", "--batch=4",
                               "--evaluate-every=5", "--threads=1"})
      all.push_back(option);
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  void wait_for(const fs::path& path) const {
    for (int i = 0; i < 3000 && !fs::exists(path); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ASSERT_TRUE(fs::exists(path)) << path;
  }

  std::string losses_without_speed(const std::string& run) const {
    std::istringstream lines(read_file(folder_ / (run + "/losses.csv")));
    std::string text, line;
    while (std::getline(lines, line)) text += line.substr(0, line.rfind(',')) + '\n';
    return text;
  }

  const TemporaryFolder folder_;
};

TEST_F(ProgramTest, WrongInputIsOneLineAndCode2) {
  write_file_synced(folder_ / "latin.txt", std::string_view("caf\xe9\nab\n"));
  write_file_synced(folder_ / "short.safetensors", std::string_view("\x08\0\0\0\0\0\0\0{}", 10));
  write_file_synced(folder_ / "nested.safetensors",
                    std::string("\xa0\x86\x01\0\0\0\0\0", 8) + std::string(100000, '['));
  fs::create_directory(folder_ / "empty");
  write_file_synced(folder_ / "same.txt", std::string_view("ab\nab\nab\n"));
  fs::create_directory(folder_ / "damaged");
  for (const char* name : {kSettingsFile, kModelFile, kOptimizerFile})
    write_file_synced(folder_ / ("damaged/" + std::string(name)), std::string_view("{}"));
  const std::vector<std::pair<Arguments, std::string>> cases{
      {{}, "subcommand"},
      {{"nothing"}, "subcommand"},
      {{"train", "--nothing"}, "--nothing"},
      {{"train", "--steps", "many"}, "--steps"},
      {{"train", "--steps", "0"}, "steps"},
      {{"train", "--batch", "-3"}, "batch"},
      {{"train", "--learning-rate", "nan"}, "learning-rate"},
      {{"train", "--betas", "0.9"}, "--betas"},
      {{"train", "--decay", "fast"}, "cosine, linear, none"},
      {{"train", "--heads", "5"}, "heads"},
      {{"train", "--device", "abacus"}, "abacus"},
      {{"train", "--threads", "-1"}, "--threads"},
      {{"train", "--threads", "100000"}, "1024"},
      {{"train", "--steps", "99999999999999999999"}, "--steps"},
      {{"train", "--lines", ""}, "--lines"},
      {{"train", "--overwrite"}, "--out"},
      {{"train", "--lines", "names.txt", "--out", "names.txt"}, "not a folder"},
      {{"train", "--lines", "same.txt"}, "none is left"},
      {{"evaluate", "--checkpoint", "damaged", "--lines", "names.txt"}, "damaged"},
      {{"train", "--validation", "1.5", "--lines", "names.txt"}, "validation"},
      {{"train", "--lines", "missing.txt"}, "missing.txt"},
      {{"train", "--lines", "latin.txt"}, "line 1"},
      {{"train", "--lines", "names.txt", "--text", "names.txt"}, "exclude"},
      {{"train", "--lines", "names.txt", "--context", "3"}, "context"},
      {{"train", "--task", "nothing"}, "recall"},
      {{"train", "--task", "lines"}, "recall"},
      {{"train", "--task", "recall", "--text", "names.txt"}, "exclude"},
      {{"train", "--task", "recall", "--distance", "7"}, "even"},
      {{"train", "--task", "copy", "--distance", "-1"}, "distance"},
      {{"train", "--distance", "8"}, "distance"},
      {{"train", "--task", "recall", "--context", "20"}, "context of 20"},
      {{"train", "--text", "names.txt", "--context", "500"}, "501"},
      {{"train", "--resume", "missing"}, "missing"},
      {{"train", "--resume", "empty"}, "empty"},
      {{"train", "--resume", "empty", "--steps", "5"}, "--steps"},
      {{"evaluate", "--checkpoint", "empty", "--lines", "names.txt"}, "empty"},
      {{"evaluate", "--checkpoint", "empty"}, "--lines"},
      {{"generate"}, "--checkpoint"},
      {{"inspect", "missing"}, "missing"},
      {{"benhc", "--steps", "3"}, "benhc"},
      {{"bench", "--work", "W9"}, "W9"},
      {{"bench", "--work", "W1-0"}, "131072"},
      {{"bench", "--against", ""}, "command"},
      {{"bench", "--scaling", "--floor"}, "--floor"},
      {{"bench", "--trace", "t.json"}, "--work"},
      {{"cost", "--model", "abacus"}, "convolution"},
      {{"cost", "--length", "0"}, "length"},
      {{"cost", "--batch", "many"}, "--batch"},
      {{"cost", "--new-tokens", "0"}, "new-tokens"},
      {{"cost", "--source", "5"}, "encoder-decoder"},
      {{"cost", "--heads", "5"}, "heads"},
      {{"cost", "--vocabulary", "0"}, "vocabulary"},
      {{"train", "--lines", "names.txt", "--precision", "f8"}, "bf16"},
      {{"train", "--gemm", "abacus"}, "openblas"},
      {{"check", "--length", "0"}, "--length"},
      {{"check", "--model", "oracle"}, "encoder-decoder"},
      {{"check", "--heads", "5"}, "heads"},
      {{"check", "--dilations", "1,x"}, "--dilations"},
      {{"check", "--context", "4", "--length", "5"}, "context of 4"},
      {{"check", "--checkpoint", "empty"}, "empty"},
      {{"check", "--checkpoint", "empty", "--layers", "3"}, "--layers"},
      {{"check", "--svg", "missing/check.svg"}, "missing"},
      {{"attention", "--text", "anna"}, "--checkpoint"},
      {{"attention", "--checkpoint", "empty"}, "--text"},
      {{"attention", "--checkpoint", "empty", "--text", "anna"}, "empty"},
      {{"inspect", "names.txt"}, "names.txt"},
      {{"inspect", "short.safetensors"}, "short.safetensors"},
      {{"inspect", "nested.safetensors"}, "nested"}};
  for (const auto& [arguments, part] : cases) {
    const Result result = run(arguments);
    std::string command;
    for (const std::string& argument : arguments) command += argument + ' ';
    EXPECT_EQ(result.code, 2) << command;
    EXPECT_EQ(result.output, "") << command;
    EXPECT_TRUE(contains(result.errors, part)) << command;
    EXPECT_TRUE(result.errors.starts_with("error: ")) << command << result.errors;
    EXPECT_EQ(std::count(result.errors.begin(), result.errors.end(), '\n'), 1) << command << result.errors;
  }
  EXPECT_FALSE(fs::exists(folder_ / "runs"));
}

TEST_F(ProgramTest, ARunCanBeInspectedEvaluatedAndContinuedInWriting) {
  const Result trained = run(training("", 10, {"--json"}));
  ASSERT_EQ(trained.code, 0) << trained.errors;
  std::istringstream lines(trained.output);
  std::vector<nlohmann::json> events;
  for (std::string line; std::getline(lines, line);) events.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(events.size(), 12u);
  EXPECT_EQ(events.front()["event"], "start");
  EXPECT_EQ(events.back()["event"], "end");
  EXPECT_EQ(events.back()["samples"].size(), 3u);
  const std::string folder = events.front()["run"];
  EXPECT_EQ(folder, "runs/names-1");
  for (const char* name : {"step-10", "best", "losses.csv", "losses.svg"})
    EXPECT_TRUE(fs::exists(folder_ / (folder + '/' + name))) << name;

  EXPECT_TRUE(contains(run({"inspect", folder}).output, "blocks.0.attention.qkv.weight"));
  EXPECT_TRUE(contains(run({"inspect", folder + "/best/model.safetensors"}).output, "f32"));
  const Result evaluated = run({"evaluate", "--checkpoint", folder, "--lines", "names.txt", "--json"});
  EXPECT_EQ(nlohmann::json::parse(evaluated.output)["targets"], 48) << evaluated.errors;
  const Arguments writing{"generate", "--checkpoint", folder, "--prompt", "an", "--count", "2"};
  const Result written = run(writing);
  EXPECT_TRUE(written.output.starts_with("an")) << written.errors;
  EXPECT_EQ(run(writing).output, written.output);
}

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

TEST_F(ProgramTest, BenchMeasuresOpsFloorsTracesAndOtherCommands) {
  const Result table = run({"bench", "--work", "attention-16", "--steps", "2", "--per-op", "--floor"});
  ASSERT_EQ(table.code, 0) << table.errors;
  for (const char* part : {"attention-16", "floor", "backward", "of its roof"})
    EXPECT_TRUE(contains(table.output, part)) << part;
  const Result object =
      run({"bench", "--work", "attention-16", "--steps", "2", "--json", "--trace", "trace.json"});
  EXPECT_EQ(nlohmann::json::parse(object.output).at("steps"), 2) << object.errors;
  EXPECT_GT(nlohmann::json::parse(read_file(folder_ / "trace.json")).at("traceEvents").size(), 1u);
  const Result against = run({"bench", "--work", "attention-16", "--steps", "2", "--json", "--against",
                              "echo '{\"median_ms\": 1000}'"});
  EXPECT_GT(nlohmann::json::parse(against.output).at("ratio").get<double>(), 1) << against.errors;
  for (const auto& [command, complaint] :
       std::map<std::string, std::string>{{"echo nothing", "median_ms"},
                                          {"exit 3", "exit code 3"},
                                          {"echo '{\"median_ms\": 0}'", "positive"}}) {
    const Result bad = run({"bench", "--work", "attention-16", "--steps", "2", "--against", command});
    EXPECT_EQ(bad.code, 2);
    EXPECT_TRUE(contains(bad.errors, complaint));
  }
  const Result scaling = run({"bench", "--work", "attention-4", "--steps", "1", "--scaling", "--json"});
  EXPECT_EQ(nlohmann::json::parse(scaling.output).at("seconds").size(), 4u) << scaling.errors;
  const Result narrow = run({"bench", "--work", "W1-8", "--steps", "1", "--precision", "bf16", "--json"});
  EXPECT_EQ(nlohmann::json::parse(narrow.output).at("precision"), "bf16") << narrow.errors;
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

TEST_F(ProgramTest, ARunInBf16GoesOnInBf16) {
  Arguments training_bf16 = training("narrow", 6);
  training_bf16.insert(training_bf16.end(), {"--precision", "bf16"});
  ASSERT_EQ(run(training_bf16).code, 0);
  EXPECT_TRUE(contains(read_file(folder_ / "narrow/step-6/checkpoint.json"), "bf16"));
  EXPECT_EQ(run({"train", "--resume", "narrow", "--precision", "f32"}).code, 2);
  EXPECT_EQ(run({"train", "--resume", "narrow"}).code, 0);
}

TEST_F(ProgramTest, AnExistingRunIsKeptAndNewOnesAreNumbered) {
  ASSERT_EQ(run(training("mine", 5)).code, 0);
  const std::string before = read_file(folder_ / "mine/losses.csv");
  const Result refused = run(training("mine", 5));
  EXPECT_EQ(refused.code, 2);
  EXPECT_TRUE(contains(refused.errors, "holds a run already"));
  EXPECT_EQ(read_file(folder_ / "mine/losses.csv"), before);
  EXPECT_EQ(run(training("mine", 6, {"--overwrite"})).code, 0);
  EXPECT_EQ(find_checkpoint(folder_ / "mine").filename(), "step-6");
  for (const char* expected : {"runs/names-1", "runs/names-2"}) {
    ASSERT_EQ(run(training("", 1)).code, 0);
    EXPECT_TRUE(fs::exists(folder_ / expected));
  }
}

TEST_F(ProgramTest, CtrlCSavesAndTheRunGoesOnToTheSameLosses) {
  const Arguments rarely{"--save-every", "1000"};
  ASSERT_EQ(run(training("straight", 600, rarely)).code, 0);
  const pid_t child = start(training("stopped", 600, rarely));
  wait_for(folder_ / "stopped/best");
  ::kill(child, SIGINT);
  const Result stopped = wait(child);
  EXPECT_EQ(stopped.code, 0) << stopped.errors;
  EXPECT_TRUE(contains(stopped.output, "needle train --resume stopped"));
  const Result resumed = run({"train", "--resume", "stopped", "--threads", "1"});
  EXPECT_EQ(resumed.code, 0) << resumed.errors;
  EXPECT_EQ(losses_without_speed("stopped"), losses_without_speed("straight"));
  EXPECT_EQ(read_file(folder_ / "stopped/step-600/model.safetensors"),
            read_file(folder_ / "straight/step-600/model.safetensors"));
}

TEST_F(ProgramTest, BR069_AKillAtAnyMomentLeavesAWholeCheckpoint) {
  pid_t child = start(training("run", 1000000, {"--save-every", "1"}));
  wait_for(folder_ / "run/best");
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200 + 13 * i));
    ::kill(child, SIGKILL);
    EXPECT_EQ(wait(child).code, -SIGKILL);
    const Result inspected = run({"inspect", "run"});
    EXPECT_EQ(inspected.code, 0) << inspected.errors;
    child = start({"train", "--resume", "run", "--threads", "1"});
  }
  ::kill(child, SIGKILL);
  wait(child);
}

}  // namespace
}  // namespace needle
