// Options that several subcommands share.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <string>

#include "backends/cpu/gemm.h"
#include "backends/device.h"
#include "needle/models/names_of_choices.h"
#include "needle/threads.h"
#include "needle/train/names_of_choices.h"

namespace needle {

/// An option that takes one of the named values of `value`'s type, or of those that `names` keeps.
template <class Choice>
CLI::Option* add_choice(CLI::App& command, const std::string& name, Choice& value, const std::string& help,
                        const ChoiceNames<Choice>& names = names_of(Choice{})) {
  const auto listed = [names](const char* separator) {
    std::string all;
    for (const auto& [known, choice] : names) all += (all.empty() ? "" : separator) + known;
    return all;
  };
  return command
      .add_option_function<std::string>(
          name,
          [&value, name, names, listed](const std::string& text) {
            const auto found = std::ranges::find(names, text, &ChoiceNames<Choice>::value_type::first);
            if (found == names.end())
              throw CLI::ValidationError(name, "'" + text + "' is not one of " + listed(", "));
            value = found->second;
          },
          help)
      ->type_name(listed("|"))
      ->default_str(name_of_choice(value));
}

/// An option that takes a value, with its present one as the default.
template <class T>
CLI::Option* add_value(CLI::App& command, const std::string& name, T& value, const std::string& help) {
  CLI::Option* option = command.add_option(name, value, help)->capture_default_str();
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    // The library would clamp what is too large, and turn around what is negative.
    option->check([](const std::string& text) {
      T number;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
      const bool whole = error == std::errc() && end == text.data() + text.size();
      return whole ? std::string() : "wants a whole number in range, got '" + text + "'";
    });
  }
  return option;
}

inline ChoiceNames<Gemm> names_of(Gemm) {
  return {{"auto", Gemm::automatic}, {"openblas", Gemm::openblas}, {"onednn", Gemm::onednn}};
}

/// The options that say where a command computes.
struct ComputeOptions {
  std::string device = "cpu";
  int threads = 0;
  Gemm gemm = Gemm::automatic;
};
inline void add_compute_options(CLI::App& command, ComputeOptions& options,
                                const std::string& group = "Options") {
  add_value(command, "--device", options.device, "Where to compute")->group(group);
  add_value(command, "--threads", options.threads, "Threads; 0: one a core")->group(group);
  add_choice(command, "--gemm", options.gemm, "Library for float32 products on the CPU")->group(group);
}
/// The device that the options name, with the threads that they ask for.
inline Device use(const ComputeOptions& options) {
  require(options.threads >= 0, "--threads must be at least 0, got ", options.threads);
  if (options.threads > 0) set_threads(options.threads);
  choose_gemm(options.gemm);
  return device_of(options.device);
}

}  // namespace needle
