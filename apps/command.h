// What every subcommand of the program is: a function that adds itself to the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

namespace needle {

/// The number that the program exits with; set by the subcommand that ran.
struct Outcome {
  int code = 0;
  std::string command;  ///< the command line, to be repeated by a shell
};

// Each adds its subcommand to `program`; running it sets `outcome`.
void add_train(CLI::App& program, Outcome& outcome);
void add_evaluate(CLI::App& program, Outcome& outcome);
void add_generate(CLI::App& program, Outcome& outcome);
void add_export(CLI::App& program, Outcome& outcome);
void add_inspect(CLI::App& program, Outcome& outcome);
void add_decoder(CLI::App& program, Outcome& outcome);
void add_bench(CLI::App& program, Outcome& outcome);
void add_compare(CLI::App& program, Outcome& outcome);
void add_devices(CLI::App& program, Outcome& outcome);
void add_cost(CLI::App& program, Outcome& outcome);
void add_gradcheck(CLI::App& program, Outcome& outcome);
void add_inside(CLI::App& program, Outcome& outcome);
void add_check(CLI::App& program, Outcome& outcome);
void add_attention(CLI::App& program, Outcome& outcome);

}  // namespace needle
