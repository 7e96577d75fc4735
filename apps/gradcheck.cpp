// `needle gradcheck`: every op's gradients against finite differences.
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/options.h"
#include "apps/terminal.h"
#include "needle/inspect/op_table.h"

namespace needle {

namespace {

struct GradcheckOptions {
  std::string op;
  ComputeOptions compute;
  bool json = false;
};

/// The cases whose name holds `wanted`; all of them when it is empty.
std::vector<OpCase> cases_of(const std::string& wanted) {
  std::vector<OpCase> cases = op_table();
  std::erase_if(cases, [&](const OpCase& op) { return op.name.find(wanted) == std::string::npos; });
  require(!cases.empty(), "gradcheck: no op's name holds '", wanted, "'");
  return cases;
}

nlohmann::json json_of(const GradientCheckRow& row) {
  // JSON knows no infinity; null says that the arrays could not be compared.
  return {{"op", row.op},
          {"order", row.order},
          {"error", row.error},
          {"difference", row.difference},
          {"passed", row.passed}};
}

int run_gradcheck(const GradcheckOptions& options) {
  const Device device = use(options.compute);
  const std::vector<OpCase> cases = cases_of(options.op);
  std::size_t width = 2;
  for (const OpCase& op : cases) width = std::max(width, op.name.size());
  if (!options.json) {
    std::cout << "backward() in float64, its worst relative error against finite differences (at most "
              << kFiniteDifferenceBound << ")\nand against the recorded gradient (at most " << kFloat64Bound
              << ")\n\n"
              << std::left << std::setw(static_cast<int>(width)) << "op"
              << "  order  differences   recorded  result\n";
  }
  int checks = 0, failures = 0;
  for (const OpCase& op : cases) {
    for (const int order : {1, 2}) {
      const GradientCheckRow row = check_gradient(op.name, op.function, inputs_of(op, device), order);
      ++checks;
      failures += !row.passed;
      if (options.json) {
        print_json(json_of(row));
        continue;
      }
      std::cout << std::left << std::setw(static_cast<int>(width)) << row.op << std::right << std::setw(7)
                << row.order << std::scientific << std::setprecision(1) << std::setw(13) << row.error
                << std::setw(11) << row.difference << (row.passed ? "  pass" : "  FAIL") << std::endl;
    }
  }
  if (!options.json) std::cout << '\n' << checks << " checks, " << failures << " failed" << std::endl;
  return failures == 0 ? 0 : 1;
}

}  // namespace

void add_gradcheck(CLI::App& program, Outcome& outcome) {
  auto options = std::make_shared<GradcheckOptions>();
  CLI::App* command = program.add_subcommand("gradcheck", "Every op's gradients against finite differences");
  command->footer("Example: needle gradcheck --op attention");
  command->add_option("--op", options->op, "Only ops whose name holds this")->type_name("NAME");
  add_compute_options(*command, options->compute);
  command->add_flag("--json", options->json, "Print one JSON object a row");
  command->callback([options, &outcome] { outcome.code = run_gradcheck(*options); });
}

}  // namespace needle
