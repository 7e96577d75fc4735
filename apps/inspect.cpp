// `needle inspect`: what is in a checkpoint or a safetensors file.
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/terminal.h"
#include "needle/io/checkpoint.h"
#include "needle/io/safetensors.h"

namespace needle {

namespace {

namespace fs = std::filesystem;

std::string text_of(const Shape& shape) {
  std::ostringstream text;
  text << shape;
  return text.str();
}

nlohmann::json describe(const SafetensorsFile& file) {
  nlohmann::json tensors = nlohmann::json::array();
  for (const std::string& name : file.names()) {
    const RawTensor& raw = file.tensor(name);
    tensors.push_back({{"name", name},
                       {"type", name_of(raw.dtype)},
                       {"shape", std::vector<std::int64_t>(raw.shape.begin(), raw.shape.end())},
                       {"bytes", raw.bytes.size()}});
  }
  return {{"file", file.path().string()}, {"tensors", tensors}, {"metadata", file.metadata()}};
}

void print_table(const SafetensorsFile& file) {
  std::size_t width = 6, shape_width = 5;
  for (const std::string& name : file.names()) {
    width = std::max(width, name.size());
    shape_width = std::max(shape_width, text_of(file.tensor(name).shape).size());
  }
  const auto row = [&](const std::string& name, const std::string& type, const std::string& shape,
                       const std::string& bytes) {
    std::cout << std::left << std::setw(static_cast<int>(width) + 2) << name << std::setw(6) << type
              << std::setw(static_cast<int>(shape_width) + 2) << shape << std::right << std::setw(14) << bytes
              << '\n';
  };
  std::cout << file.path().string() << '\n';
  row("tensor", "type", "shape", "bytes");
  std::int64_t bytes = 0, numbers = 0;
  for (const std::string& name : file.names()) {
    const RawTensor& raw = file.tensor(name);
    row(name, std::string(name_of(raw.dtype)), text_of(raw.shape),
        with_commas(static_cast<std::int64_t>(raw.bytes.size())));
    bytes += static_cast<std::int64_t>(raw.bytes.size());
    numbers += raw.shape.count();
  }
  row("total", "", with_commas(numbers), with_commas(bytes));
  for (const auto& [key, value] : file.metadata()) std::cout << "metadata " << key << ": " << value << '\n';
}

void run_inspection(const std::string& path, bool json) {
  std::vector<fs::path> files;
  nlohmann::json settings;
  if (fs::is_directory(path)) {
    const fs::path folder = find_checkpoint(path);
    settings = load_settings(folder);
    for (const char* name : {"model.safetensors", "optimizer.safetensors"}) files.push_back(folder / name);
  } else {
    files.emplace_back(path);
  }
  nlohmann::json all = {{"files", nlohmann::json::array()}};
  for (const fs::path& name : files) {
    const SafetensorsFile file(name);
    if (json)
      all["files"].push_back(describe(file));
    else
      print_table(file);
  }
  if (json) {
    if (!settings.is_null()) all["settings"] = settings;
    std::cout << all.dump() << std::endl;
  } else if (!settings.is_null()) {
    std::cout << "settings " << settings.dump(2) << std::endl;
  }
}

}  // namespace

void add_inspect(CLI::App& program, Outcome&) {
  auto path = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  CLI::App* command = program.add_subcommand("inspect", "What is in a checkpoint or a safetensors file");
  command->footer("Example: needle inspect runs/corpus-1");
  command->add_option("path", *path, "A .safetensors file, a checkpoint or a run")->required();
  command->add_flag("--json", *json, "Print one JSON object");
  command->callback([path, json] { run_inspection(*path, *json); });
}

}  // namespace needle
