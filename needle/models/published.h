// The tensors of published checkpoints: GPT-2's and Llama's names, read and written as they lie.
#pragma once

#include <filesystem>

#include "needle/data/tokenizer.h"
#include "needle/models/published_config.h"
#include "needle/models/sequence_model.h"

namespace needle {

/// The safetensors files of a published checkpoint: model.safetensors, or the parts that its index names.
std::vector<std::filesystem::path> published_files(const std::filesystem::path& folder);

/// Replaces the numbers of a decoder by those in `folder`, converted from any floating type. Tensors that are
/// unknown, missing or of a wrong shape are all listed in one Error, before anything is changed.
void load_published(const std::filesystem::path& folder, PublishedNames names, SequenceModel& model);

/// Writes config.json, model.safetensors and, of byte pairs, tokenizer.json into `folder`, which exists.
/// Throws where the model has something for which published names have no place.
void save_published(const std::filesystem::path& folder, SequenceModel& model, const Tokenizer& tokenizer);

}  // namespace needle
