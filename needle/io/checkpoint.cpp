#include "needle/io/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>

#include "needle/io/files.h"
#include "needle/io/safetensors.h"

namespace needle {

namespace fs = std::filesystem;

namespace {

constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kSettingsFile = "checkpoint.json";

/// A tensor of a file as an array of its own type.
NDArray array_of(const RawTensor& raw, Device device) {
  const NDArray array = NDArray::empty(raw.shape, raw.dtype, device);
  device->copy_from_host(raw.bytes.data(), array.view().data, raw.bytes.size());
  return array;
}

bool same_bytes(const RawTensor& a, const RawTensor& b) {
  return a.dtype == b.dtype && a.shape == b.shape && std::ranges::equal(a.bytes, b.bytes);
}

/// What is wrong with the file's tensors, one line each.
std::vector<std::string> mismatches(const SafetensorsFile& file, const std::vector<Parameter>& targets) {
  std::vector<std::string> wrong;
  std::vector<std::string> known;
  const auto complain = [&](auto&&... parts) {
    std::ostringstream line;
    (line << ... << parts);
    wrong.push_back(line.str());
  };
  for (const Parameter& target : targets) {
    known.push_back(target.name);
    if (!file.contains(target.name)) {
      complain("missing: ", target.name, ' ', target.tensor.shape());
      continue;
    }
    const RawTensor& raw = file.tensor(target.name);
    if (raw.shape != target.tensor.shape())
      complain("shape: ", target.name, " is ", raw.shape, ", wanted ", target.tensor.shape());
    if (is_floating(raw.dtype) != is_floating(target.tensor.dtype())) {
      complain("type: ", target.name, " is ", name_of(raw.dtype), ", wanted ",
               name_of(target.tensor.dtype()));
    }
    for (const std::string& alias : target.aliases) {
      if (!file.contains(alias)) continue;
      known.push_back(alias);
      if (!same_bytes(file.tensor(alias), raw)) complain("tied: ", alias, " differs from ", target.name);
    }
  }
  for (const std::string& name : file.names()) {
    if (std::find(known.begin(), known.end(), name) == known.end())
      complain("unknown: ", name, ' ', file.tensor(name).shape);
  }
  return wrong;
}

}  // namespace

void save_tensors(const fs::path& file, const std::vector<Parameter>& tensors) {
  std::vector<std::vector<std::byte>> contents;
  std::vector<NamedTensor> named;
  contents.reserve(tensors.size());
  for (const Parameter& parameter : tensors) {
    const NDArray array = parameter.tensor.array().compact();
    contents.emplace_back(array.bytes());
    array.device()->copy_to_host(array.view().data, contents.back().data(), array.bytes());
    named.push_back({parameter.name, {array.dtype(), array.shape(), contents.back()}});
  }
  write_safetensors(file, named, {{"format", "needle"}});
}

void load_tensors(const fs::path& path, const std::vector<Parameter>& targets) {
  const SafetensorsFile file(path);
  if (const std::vector<std::string> wrong = mismatches(file, targets); !wrong.empty()) {
    std::string all;
    for (const std::string& line : wrong) all += "; " + line;
    fail(path.string(), " does not fit the model", all);
  }
  for (Parameter target : targets) {
    target.tensor.set_array(
        array_of(file.tensor(target.name), target.tensor.device()).cast(target.tensor.dtype()));
  }
}

void save_checkpoint(const fs::path& folder, const nlohmann::json& settings, Module& model,
                     Optimizer& optimizer) {
  PendingFolder pending(folder);
  save_tensors(pending.path() / kModelFile, model.state());
  save_tensors(pending.path() / kOptimizerFile, optimizer.state());
  write_file_synced(pending.path() / kSettingsFile, settings.dump(2) + "\n");
  pending.commit();
}

nlohmann::json load_settings(const fs::path& folder) {
  const fs::path file = folder / kSettingsFile;
  return parse_json(read_file(file), file.string());
}

void load_model(const fs::path& folder, Module& model) { load_tensors(folder / kModelFile, model.state()); }
void load_optimizer(const fs::path& folder, Optimizer& optimizer) {
  load_tensors(folder / kOptimizerFile, optimizer.state());
}

std::vector<fs::path> checkpoints_of(const fs::path& run) {
  std::vector<std::pair<std::int64_t, fs::path>> found;
  std::error_code missing;
  for (const fs::directory_entry& entry : fs::directory_iterator(run, missing)) {
    const std::string name = entry.path().filename().string();
    std::int64_t step = 0;
    constexpr std::string_view kPrefix = "step-";
    if (!name.starts_with(kPrefix) || !fs::exists(entry.path() / kSettingsFile)) continue;
    const char *first = name.data() + kPrefix.size(), *last = name.data() + name.size();
    if (const auto [end, error] = std::from_chars(first, last, step); error == std::errc() && end == last) {
      found.emplace_back(step, entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> folders;
  for (auto& [step, folder] : found) folders.push_back(std::move(folder));
  return folders;
}

fs::path find_checkpoint(const fs::path& path) {
  require(fs::exists(path), path.string(), ": there is no such folder");
  if (fs::exists(path / kSettingsFile)) return path;
  const std::vector<fs::path> found = checkpoints_of(path);
  require(!found.empty(), path.string(), ": there is no checkpoint in it; wants a folder with ",
          kSettingsFile, " or with step-N folders");
  return found.back();
}

}  // namespace needle
