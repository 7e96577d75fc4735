// `needle devices`: where the program can compute.
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/terminal.h"
#include "backends/device.h"
#include "needle/threads.h"

namespace needle {

namespace {

void print_devices(bool json) {
  for (const Device device : all_devices()) {
    const double free = static_cast<double>(device->free_memory()),
                 total = static_cast<double>(device->total_memory());
    if (json) {
      nlohmann::json object{{"device", device.name()},
                            {"description", device->description()},
                            {"memory_bytes", device->total_memory()},
                            {"free_memory_bytes", device->free_memory()},
                            {"emulated", device->is_emulated()}};
      if (device == cpu()) object["threads"] = threads();
      print_json(object);
      continue;
    }
    print_row(device.name(), device->description());
    print_row("", megabytes(free) + " of " + megabytes(total) + " free" +
                      (device == cpu() ? ", " + std::to_string(threads()) + " threads" : ""));
  }
  const std::string reason = reason_without_cuda();
  if (!json && !reason.empty()) print_row("no cuda", reason);
}

}  // namespace

void add_devices(CLI::App& program, Outcome&) {
  CLI::App* command =
      program.add_subcommand("devices", "List the devices that can compute, with their memory");
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print one JSON object a device");
  command->callback([json] { print_devices(*json); });
  command->footer("Example: needle devices");
}

}  // namespace needle
