// `needle gradcheck`: every op's gradients against finite differences.
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "needle/inspect/gradient_check.h"

namespace needle {
void add_gradcheck(CLI::App&, Outcome&) {}
}  // namespace needle
