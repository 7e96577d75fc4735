#include "apps/generate_interactive.h"

#include <editline/readline.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

namespace needle {

namespace {

/// Where earlier lines are kept; empty without a home.
std::filesystem::path history_file() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  std::filesystem::path folder;
  if (state && *state)
    folder = state;
  else if (home && *home)
    folder = std::filesystem::path(home) / ".local/state";
  else
    return {};
  std::error_code ignored;
  std::filesystem::create_directories(folder / "needle", ignored);
  return folder / "needle/history";
}

/// A line, with editing where there is a terminal.
std::optional<std::string> ask(bool terminal) {
  std::string line;
  if (!terminal) return std::getline(std::cin, line) ? std::optional(line) : std::nullopt;
  const std::unique_ptr<char, decltype(&std::free)> typed(readline("> "), &std::free);
  if (!typed) return {};
  line = typed.get();
  if (!line.empty()) add_history(line.c_str());
  return line;
}

}  // namespace

void write_interactively(SavedModel& saved, const RowsSettings& settings, Device device) {
  const bool terminal = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  const std::filesystem::path file = terminal ? history_file() : std::filesystem::path();
  if (terminal) {
    using_history();
    stifle_history(1000);
    if (!file.empty()) read_history(file.c_str());
    std::cerr << "an empty line writes from the beginning; Ctrl-D ends\n";
  }
  RowsSettings next = settings;
  next.speed = false;
  while (const std::optional<std::string> line = ask(terminal)) {
    try {
      write_rows(saved, {prompt_of(saved, *line)}, next, device);
    } catch (const Error& error) {  // such as a character that the model does not know
      std::cerr << "error: " << error.what() << '\n';
    }
    ++next.seed;
    if (!file.empty()) write_history(file.c_str());
  }
  if (terminal) std::cerr << '\n';
}

}  // namespace needle
