// The program `needle`: finds the subcommand and turns every error into one line and exit code 2.
#include <exception>
#include <filesystem>
#include <iostream>
#include <new>

#include "apps/command.h"
#include "apps/terminal.h"
#include "backends/error.h"
#include "needle/threads.h"

int main(int count, char** arguments) {
  needle::restart_with_short_spinning(arguments);
  CLI::App program{"needle: tensors, autograd and small sequence models, from scratch"};
  program.set_version_flag("--version", "needle " NEEDLE_VERSION);
  program.require_subcommand(1);
  program.failure_message([](const CLI::App* app, const CLI::Error& error) {
    const bool unknown = app->get_subcommands().empty() && !app->remaining().empty();
    const std::string what =
        unknown ? "there is no subcommand '" + app->remaining().front() + "'" : error.what();
    return "error: " + what + "; see --help\n";
  });
  needle::Outcome outcome;
  for (int i = 0; i < count; ++i) outcome.command += (i > 0 ? " " : "") + needle::quoted(arguments[i]);
  needle::add_train(program, outcome);
  needle::add_evaluate(program, outcome);
  needle::add_generate(program, outcome);
  needle::add_export(program, outcome);
  needle::add_inspect(program, outcome);
  needle::add_inside(program, outcome);
  needle::add_check(program, outcome);
  needle::add_attention(program, outcome);
  needle::add_decoder(program, outcome);
  needle::add_compare(program, outcome);
  needle::add_devices(program, outcome);
  needle::add_cost(program, outcome);
  needle::add_gradcheck(program, outcome);
  needle::add_bench(program, outcome);
  try {
    program.parse(count, arguments);
  } catch (const CLI::ParseError& error) {
    if (program.exit(error) != 0) return 2;
  } catch (const std::bad_alloc&) {
    std::cerr << "error: there is not enough memory\n";
    return 2;
  } catch (const std::filesystem::filesystem_error& error) {
    std::cerr << "error: " << error.path1().string() << ": " << error.code().message() << '\n';
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 2;
  }
  std::cout.flush();
  if (!std::cout) {
    std::cerr << "error: the output could not be written\n";
    return 2;
  }
  return outcome.code;
}
