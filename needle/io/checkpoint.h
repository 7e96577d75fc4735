// Checkpoints: a folder with the model's and the optimizer's tensors, and one JSON file of everything else.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "needle/io/safetensors.h"
#include "needle/nn/module.h"
#include "needle/optim/optimizer.h"

namespace needle {

inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
inline constexpr const char* kSettingsFile = "checkpoint.json";

/// Writes tensors, from any device, to a safetensors file under their first names; `metadata` as
/// write_safetensors().
void save_tensors(const std::filesystem::path& file, const std::vector<Parameter>& tensors,
                  const std::map<std::string, std::string>& metadata = {});
/// A tensor of a file as an array on `device`, of its own type.
NDArray array_of(const RawTensor& raw, Device device = cpu());

/// A file, and the tensors whose numbers it holds.
struct TensorSource {
  std::filesystem::path file;
  std::vector<Parameter> targets;
};
/// Replaces the numbers of all targets by those of the files, converted between floating types. Tensors that
/// are unknown, missing, of a wrong shape or of a wrong type are all listed in one Error, before anything is
/// changed. An alias of a tied tensor is accepted when it holds the same numbers.
void load_tensors(const std::vector<TensorSource>& sources);

/// Writes a whole checkpoint; `settings` is all that is not a tensor. It appears under the name `folder`
/// complete or not at all, so that a crash leaves what was there before.
void save_checkpoint(const std::filesystem::path& folder, const nlohmann::json& settings, Module& model,
                     Optimizer& optimizer);
/// The settings of a checkpoint.
nlohmann::json load_settings(const std::filesystem::path& folder);
/// The tensors of a checkpoint; the second form, for use, leaves the optimizer's aside.
void load_checkpoint(const std::filesystem::path& folder, Module& model, Optimizer& optimizer);
void load_checkpoint(const std::filesystem::path& folder, Module& model);

/// Whether a folder holds all files of a checkpoint.
bool is_whole_checkpoint(const std::filesystem::path& folder);
/// N of a folder named "step-N", or -1.
std::int64_t step_of(const std::filesystem::path& folder);
/// The whole `step-N` folders of a run, oldest first.
std::vector<std::filesystem::path> checkpoints_of(const std::filesystem::path& run);
/// The checkpoint that `path` means: itself, or the newest one of the run `path`. Throws when there is none.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

}  // namespace needle
