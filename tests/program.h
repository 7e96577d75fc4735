// Running the program in a folder of its own.
#pragma once

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

}  // namespace needle
