// A model out of a checkpoint, with what it takes to use it.
#pragma once

#include <filesystem>

#include "needle/train/trainer.h"

namespace needle {

/// A model out of a checkpoint, with what it takes to use it.
struct SavedModel {
  std::filesystem::path folder;  ///< of the checkpoint
  TrainSettings settings;        ///< of the run that trained it
  Tokenizer tokenizer;
  std::unique_ptr<SequenceModel> model;
};
/// Reads the checkpoint `path`, or the newest one of the run `path`.
SavedModel load_saved_model(const std::filesystem::path& path, Device device);

}  // namespace needle
