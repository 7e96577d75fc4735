// Options that several subcommands share.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "needle/models/names_of_choices.h"
#include "needle/train/names_of_choices.h"

namespace needle {

/// An option that takes one of the named values of `value`'s type.
template <class Choice>
CLI::Option* add_choice(CLI::App& command, const std::string& name, Choice& value, const std::string& help) {
  std::string all;
  for (const auto& [known, choice] : names_of(Choice{})) all += (all.empty() ? "" : "|") + known;
  return command
      .add_option_function<std::string>(
          name,
          [&value, name](const std::string& text) {
            try {
              value = choice_of_name<Choice>(text);
            } catch (const Error& error) {
              throw CLI::ValidationError(name, error.what());
            }
          },
          help)
      ->type_name(all)
      ->default_str(name_of_choice(value));
}

/// An option that takes a value, with its present one as the default.
template <class T>
CLI::Option* add_value(CLI::App& command, const std::string& name, T& value, const std::string& help) {
  return command.add_option(name, value, help)->capture_default_str();
}

}  // namespace needle
