// `needle inspect`: what is in a checkpoint, or in any safetensors file.
#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/command.h"
#include "apps/terminal.h"
#include "needle/io/checkpoint.h"
#include "needle/io/files.h"
#include "needle/io/safetensors.h"
#include "needle/models/published.h"

namespace needle {

namespace {

namespace fs = std::filesystem;

std::string text_of(const Shape& shape) {
  std::ostringstream text;
  text << shape;
  return text.str();
}

/// A table in columns as wide as their longest cell; names to the left, numbers to the right.
void print_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.empty() ? 0 : rows.front().size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  constexpr std::size_t kLeftColumns = 3;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool left = i < kLeftColumns, last = i + 1 == row.size();
      std::cout << (i == 0 ? "" : "  ") << (left ? std::left : std::right)
                << std::setw(left && last ? 0 : static_cast<int>(widths[i])) << row[i];
    }
    std::cout << '\n';
  }
}

void print_tensors(const SafetensorsFile& file) {
  std::vector<std::vector<std::string>> rows{{"tensor", "type", "shape", "numbers", "bytes"}};
  std::int64_t numbers = 0, bytes = 0;
  for (const std::string& name : file.names()) {
    const RawTensor& tensor = file.tensor(name);
    rows.push_back({printable(name), std::string(name_of(tensor.dtype)), text_of(tensor.shape),
                    with_commas(tensor.shape.count()), with_commas(std::ssize(tensor.bytes))});
    numbers += tensor.shape.count();
    bytes += std::ssize(tensor.bytes);
  }
  rows.push_back(
      {std::to_string(file.names().size()) + " tensors", "", "", with_commas(numbers), with_commas(bytes)});
  std::cout << file.path().string() << '\n';
  for (const auto& [key, value] : file.metadata()) print_row(key, value);
  print_table(rows);
}

/// Appends a row for each value, nested names joined by dots.
void list_settings(const std::string& name, const nlohmann::json& value,
                   std::vector<std::vector<std::string>>& rows) {
  if (!value.is_object()) {
    rows.push_back({name, value.is_string() ? value.get<std::string>() : value.dump()});
    return;
  }
  for (const auto& [key, inner] : value.items())
    list_settings(name.empty() ? key : name + '.' + key, inner, rows);
}

void print_settings(const nlohmann::json& settings) {
  std::vector<std::vector<std::string>> rows;
  list_settings("", settings, rows);
  print_table(rows);
}

nlohmann::json json_of(const SafetensorsFile& file) {
  nlohmann::json tensors = nlohmann::json::array();
  for (const std::string& name : file.names()) {
    const RawTensor& tensor = file.tensor(name);
    tensors.push_back({{"name", name},
                       {"type", name_of(tensor.dtype)},
                       {"shape", std::vector<std::int64_t>(tensor.shape.begin(), tensor.shape.end())},
                       {"bytes", tensor.bytes.size()}});
  }
  return {{"file", file.path().string()}, {"metadata", file.metadata()}, {"tensors", tensors}};
}

void run_inspection(const std::string& path, bool as_json) {
  std::vector<fs::path> files{path};
  nlohmann::json settings;
  if (is_published(path)) {
    files = published_files(path);
    const std::string config = (fs::path(path) / kConfigFile).string();
    settings = parse_json(read_file(config), config);
    if (!as_json) print_settings(settings);
  } else if (fs::is_directory(path)) {
    const fs::path folder = find_checkpoint(path);
    files = {folder / kModelFile, folder / kOptimizerFile};
    settings = load_settings(folder);
    if (!as_json) print_settings(settings);
  }
  nlohmann::json described = nlohmann::json::array();
  for (const fs::path& name : files) {
    const SafetensorsFile file(name);
    if (as_json) {
      described.push_back(json_of(file));
    } else {
      if (!settings.is_null()) std::cout << '\n';
      print_tensors(file);
    }
  }
  if (as_json) print_json({{"settings", settings}, {"files", described}});
}

}  // namespace

void add_inspect(CLI::App& program, Outcome&) {
  auto path = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  CLI::App* command =
      program.add_subcommand("inspect", "Show what is in a checkpoint or in a safetensors file");
  command->footer("Example: needle inspect runs/corpus-1");
  command->add_option("path", *path, "A safetensors file, a run, one of its checkpoints, or a published one")
      ->type_name("FILE|DIR")
      ->required();
  command->add_flag("--json", *json, "Print one JSON object");
  command->callback([path, json] { run_inspection(*path, *json); });
}

}  // namespace needle
