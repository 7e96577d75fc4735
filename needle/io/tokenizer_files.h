// The files in which published checkpoints keep their byte pairs.
#pragma once

#include <filesystem>
#include <optional>

#include "needle/data/tokenizer.h"

namespace needle {

/// The byte pairs in `folder`: `tokenizer.json`, or else `vocab.json` and `merges.txt`. `begin` and `end` are
/// the ids that begin and end a text, where `tokenizer_config.json` names no others. Where there are none, or
/// of a kind that we cannot read, a tokenizer of `vocabulary` mere ids, which says why to whoever wants text.
Tokenizer read_tokenizer(const std::filesystem::path& folder, std::int64_t vocabulary,
                         std::optional<std::int64_t> begin, std::optional<std::int64_t> end);

/// Writes `tokenizer.json` of byte pairs; false for other kinds, for which there is no such file.
bool write_tokenizer(const std::filesystem::path& folder, const Tokenizer& tokenizer);

}  // namespace needle
