// The program itself: its errors are one line and exit code 2, and a run survives Ctrl-C and being killed.
#include "tests/program.h"

namespace needle {
namespace {

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

// Of SIGINT, SIGTERM and SIGHUP none may have a handler: in the middle of a product of oneDNN it damages the
// heap.
TEST_F(ProgramTest, SignalsThatStopARunInterruptNoComputing) {
  const pid_t child = start(training("run", 1000000));
  wait_for(folder_ / "run/best");
  const std::string status = read_file("/proc/" + std::to_string(child) + "/status");
  const auto mask = [&](const std::string& name) {
    return std::stoull(status.substr(status.find(name) + name.size()), nullptr, 16);
  };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    EXPECT_EQ(mask("SigCgt:") >> (signal - 1) & 1, 0u) << signal;
    EXPECT_EQ(mask("SigBlk:") >> (signal - 1) & 1, 1u) << signal;
  }
  ::kill(child, SIGTERM);
  EXPECT_EQ(wait(child).code, 0);
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
