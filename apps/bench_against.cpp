// Our steps by turns with another program's.
#include <sched.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>
#include <sstream>

#include "apps/bench_measure.h"
#include "apps/terminal.h"
#include "backends/clock.h"

namespace needle {

namespace {

/// Another program must not inherit what this one has chosen for itself: the one processor that its first
/// thread is bound to, and the settings of threads that it started itself anew with.
class OwnSettingsAside {
 public:
  OwnSettingsAside() {
    sched_getaffinity(0, sizeof bound_, &bound_);
    cpu_set_t all;
    std::memset(&all, 0xFF, sizeof all);
    sched_setaffinity(0, sizeof all, &all);
    forget_restart_settings();
  }
  OwnSettingsAside(const OwnSettingsAside&) = delete;
  OwnSettingsAside& operator=(const OwnSettingsAside&) = delete;
  ~OwnSettingsAside() { sched_setaffinity(0, sizeof bound_, &bound_); }

 private:
  cpu_set_t bound_{};
};

/// The last number of that name that a command prints in a line of JSON.
double number_of_command(const std::string& command, const std::string& key) {
  const OwnSettingsAside aside;
  FILE* const pipe = popen(command.c_str(), "r");
  require(pipe != nullptr, "bench: the command could not be started: ", command);
  std::string output;
  char part[4096];
  while (const std::size_t count = std::fread(part, 1, sizeof part, pipe)) output.append(part, count);
  const int status = pclose(pipe);
  require(WIFEXITED(status) && WEXITSTATUS(status) == 0, "bench: the command ended with ",
          WIFEXITED(status) ? "exit code " : "signal ",
          WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), ": ", command);
  std::istringstream lines(output);
  std::optional<double> found;
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object() && json.contains(key) && json[key].is_number()) found = json[key].get<double>();
  }
  require(found.has_value(), "bench: the command printed no JSON object with a number '", key,
          "': ", command);
  require(*found > 0, "bench: the command's '", key, "' must be positive, got ", *found, ": ", command);
  return *found;
}

}  // namespace

void run_against(nlohmann::json about, const std::function<double()>& measure, const std::string& command,
                 const std::string& key, bool json) {
  constexpr int kRounds = 5;
  std::vector<double> ours, theirs, ratios;
  for (int round = 0; round < kRounds; ++round) {
    ours.push_back(measure());
    theirs.push_back(number_of_command(command, key));
    ratios.push_back(theirs.back() / ours.back());
  }
  const auto spread = [](const std::vector<double>& values) {
    return std::pair{*std::min_element(values.begin(), values.end()),
                     *std::max_element(values.begin(), values.end())};
  };
  if (json) {
    about.update({{"ours_ms", ours},
                  {"theirs_ms", theirs},
                  {"ratio", median(ratios)},
                  {"ratio_spread", spread(ratios)}});
    return print_json(about);
  }
  const auto row = [&](const char* label, const std::vector<double>& values, const char* unit) {
    print_row(label, fixed(median(values), 2) + unit + ", " + fixed(spread(values).first, 2) + " to " +
                         fixed(spread(values).second, 2) + " in " + std::to_string(kRounds) +
                         " rounds by turns");
  };
  row(about.at("work").get<std::string>().c_str(), ours, " ms");
  row("command", theirs, " ms");
  row("ratio", ratios, " times the command's time over ours");
}

}  // namespace needle
