// A model out of a checkpoint, of ours or as others publish them, with what it takes to use it.
#pragma once

#include <filesystem>
#include <optional>

#include "needle/models/published_config.h"
#include "needle/train/trainer.h"

namespace needle {

/// What a checkpoint says beside its tensors.
struct SavedDescription {
  std::filesystem::path folder;             ///< of the checkpoint
  TrainSettings settings;                   ///< of the run that trained it; a published one has read texts
  Tokenizer tokenizer;                      ///< of a published one without its files: mere ids
  std::optional<PublishedNames> published;  ///< the names of its tensors; none: ours
};
/// Reads it from the checkpoint `path`, the newest one of the run `path`, or the folder `path` that holds a
/// published one; of that, what nobody here knows becomes a warning on stderr.
SavedDescription describe_saved(const std::filesystem::path& path);
/// Replaces the numbers of a model that is built alike by those of the checkpoint.
void load_weights(const SavedDescription& saved, SequenceModel& model);

/// A model out of a checkpoint, with what it takes to use it.
struct SavedModel : SavedDescription {
  std::unique_ptr<SequenceModel> model;
};
/// describe_saved() with the model.
SavedModel load_saved_model(const std::filesystem::path& path, Device device);

}  // namespace needle
