// Checkpoints: a folder with the model's and the optimizer's tensors and one JSON of everything else.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "needle/nn/module.h"
#include "needle/optim/optimizer.h"

namespace needle {

/// Writes tensors of any device to a safetensors file.
void save_tensors(const std::filesystem::path& file, const std::vector<Parameter>& tensors);

/// Replaces the numbers of `targets` by those of the file. Unknown, missing and wrong-shaped tensors, and
/// integers where numbers with fractions are wanted, are all listed in one Error, before anything is changed.
/// An alias of a tied tensor is accepted when it holds the same numbers.
void load_tensors(const std::filesystem::path& file, const std::vector<Parameter>& targets);

/// Writes a whole checkpoint to `folder` under another name first, so that a crash leaves the previous one
/// whole; an existing folder of that name is replaced. `settings` is everything besides tensors.
void save_checkpoint(const std::filesystem::path& folder, const nlohmann::json& settings, Module& model,
                     Optimizer& optimizer);

/// The settings of a checkpoint folder.
nlohmann::json load_settings(const std::filesystem::path& folder);
void load_model(const std::filesystem::path& folder, Module& model);
void load_optimizer(const std::filesystem::path& folder, Optimizer& optimizer);

/// The checkpoint that `path` means: itself, or the newest `step-N` of a run. Throws when there is none.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

/// The `step-N` folders of a run, oldest first.
std::vector<std::filesystem::path> checkpoints_of(const std::filesystem::path& run);

}  // namespace needle
