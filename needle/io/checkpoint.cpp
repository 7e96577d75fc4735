#include "needle/io/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <list>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "needle/io/files.h"

namespace needle {

namespace fs = std::filesystem;

namespace {

bool same_numbers(const RawTensor& a, const RawTensor& b) {
  return a.dtype == b.dtype && a.shape == b.shape && std::ranges::equal(a.bytes, b.bytes);
}

bool convertible(DType from, DType to) { return from == to || (is_floating(from) && is_floating(to)); }

/// Collects what is wrong with a file's tensors.
class Mismatches {
 public:
  void compare(const SafetensorsFile& file, const std::vector<Parameter>& targets) {
    std::set<std::string> known;
    for (const Parameter& target : targets) {
      known.insert(target.name);
      known.insert(target.aliases.begin(), target.aliases.end());
      compare(file, target);
    }
    for (const std::string& name : file.names()) {
      if (!known.contains(name)) add("unknown ", name, ' ', file.tensor(name).shape);
    }
  }
  bool none() const { return text_.empty(); }
  const std::string& text() const { return text_; }

 private:
  void compare(const SafetensorsFile& file, const Parameter& target) {
    const Tensor& wanted = target.tensor;
    if (!file.contains(target.name)) return add("missing ", target.name, ' ', wanted.shape());
    const RawTensor& found = file.tensor(target.name);
    if (found.shape != wanted.shape())
      add(target.name, " has shape ", found.shape, ", wanted ", wanted.shape());
    if (!convertible(found.dtype, wanted.dtype()))
      add(target.name, " has type ", name_of(found.dtype), ", wanted ", name_of(wanted.dtype()));
    for (const std::string& alias : target.aliases) {
      if (file.contains(alias) && !same_numbers(file.tensor(alias), found))
        add(alias, " differs from ", target.name, ", to which it is tied");
    }
  }

  template <class... Parts>
  void add(const Parts&... parts) {
    std::ostringstream line;
    (line << ... << parts);
    text_ += (text_.empty() ? "" : "; ") + line.str();
  }

  std::string text_;
};

}  // namespace

NDArray array_of(const RawTensor& raw, Device device) {
  const NDArray array = NDArray::empty(raw.shape, raw.dtype, device);
  device->copy_from_host(raw.bytes.data(), array.view().data, raw.bytes.size());
  return array;
}

void save_tensors(const fs::path& file, const std::vector<Parameter>& tensors,
                  const std::map<std::string, std::string>& metadata) {
  std::vector<std::vector<std::byte>> contents;
  std::vector<NamedTensor> named;
  contents.reserve(tensors.size());
  for (const Parameter& parameter : tensors) {
    const NDArray array = parameter.tensor.array().compact();
    std::vector<std::byte>& bytes = contents.emplace_back(array.bytes());
    array.device()->copy_to_host(array.view().data, bytes.data(), bytes.size());
    named.push_back({parameter.name, {array.dtype(), array.shape(), bytes}});
  }
  write_safetensors(file, named, metadata);
}

void load_tensors(const std::vector<TensorSource>& sources) {
  std::list<SafetensorsFile> files;
  for (const auto& [path, targets] : sources) {
    files.emplace_back(path);
    Mismatches wrong;
    wrong.compare(files.back(), targets);
    require(wrong.none(), path.string(), " does not fit: ", wrong.text());
  }
  std::vector<std::pair<Tensor, NDArray>> replacements;
  for (const auto& [path, targets] : sources) {
    for (const Parameter& target : targets) {
      const NDArray loaded = array_of(files.front().tensor(target.name), target.tensor.device());
      replacements.emplace_back(target.tensor, loaded.cast(target.tensor.dtype()));
    }
    files.pop_front();
  }
  for (auto& [tensor, array] : replacements) tensor.set_array(std::move(array));
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

void load_checkpoint(const fs::path& folder, Module& model, Optimizer& optimizer) {
  load_tensors({{folder / kModelFile, model.state()}, {folder / kOptimizerFile, optimizer.state()}});
}

void load_checkpoint(const fs::path& folder, Module& model) {
  load_tensors({{folder / kModelFile, model.state()}});
}

bool is_whole_checkpoint(const fs::path& folder) {
  return fs::exists(folder / kSettingsFile) && fs::exists(folder / kModelFile) &&
         fs::exists(folder / kOptimizerFile);
}

std::int64_t step_of(const fs::path& folder) {
  constexpr std::string_view kPrefix = "step-";
  const std::string name = folder.filename().string();
  std::int64_t step = -1;
  if (!name.starts_with(kPrefix)) return -1;
  const char* const end = name.data() + name.size();
  const auto [stopped, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  return error == std::errc() && stopped == end ? step : -1;
}

std::vector<fs::path> checkpoints_of(const fs::path& run) {
  std::vector<fs::path> folders;
  std::error_code missing;
  for (const fs::directory_entry& entry : fs::directory_iterator(run, missing)) {
    if (step_of(entry.path()) >= 0 && is_whole_checkpoint(entry.path())) folders.push_back(entry.path());
  }
  std::ranges::sort(folders, {}, step_of);
  return folders;
}

fs::path find_checkpoint(const fs::path& path) {
  require(fs::is_directory(path), path.string(), ": there is no such folder");
  if (is_whole_checkpoint(path)) return path;
  const std::vector<fs::path> found = checkpoints_of(path);
  require(!found.empty(), path.string(), ": there is no whole checkpoint in it");
  return found.back();
}

}  // namespace needle
