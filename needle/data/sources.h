// The data sets that the program offers: a file's lines, a file's text, and the built-in corpus.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "needle/data/dataset.h"

namespace needle {

/// A whole text file, without a byte order mark and with "\n" for "\r\n". Throws if it can't be read.
std::string read_text(const std::filesystem::path& path);

/// How a file becomes a data set.
struct FileOptions {
  Tokenizer::Kind tokens = Tokenizer::Kind::characters;
  std::optional<Tokenizer> tokenizer = {};  ///< one that is known already; else one of that kind is made
  double validation_share = 0.1;            ///< of the lines or of the text, in (0, 1)
  RowFormat format;
  std::uint64_t seed = 0;  ///< of the split of lines and of the training order
};

/// One row for each line that isn't empty. A seeded shuffle chooses the validation lines, at least one;
/// training lines equal to one of them are left out, and the description says how many. Throws on fewer than
/// two lines, and on a line too long for the context, naming it.
std::unique_ptr<Dataset> rows_from_file(const std::filesystem::path& path, const FileOptions& options);

/// Windows of the whole text. Its last part, a share of the tokens, is for validation. Throws if either part
/// is shorter than a window.
std::unique_ptr<Dataset> stream_from_file(const std::filesystem::path& path, const FileOptions& options);

/// A whole file by a vocabulary that is known already, `size` examples to a batch: its lines as rows, or its
/// text as windows that follow one another, the last one shorter. Throws on text outside the vocabulary, and
/// on a line too long for the context.
std::vector<Batch> batches_of_lines(const std::filesystem::path& path, const Tokenizer& tokenizer,
                                    const RowFormat& format, std::int64_t size);
std::vector<Batch> batches_of_text(const std::filesystem::path& path, const Tokenizer& tokenizer,
                                   std::int64_t context, std::int64_t size);

/// Sentences of the built-in Corpus, as characters, with the exact floor of the validation loss. Training and
/// validation sentences come from separate child streams of `seed`; the description says which share of the
/// validation sentences also occurs in training.
std::unique_ptr<Dataset> rows_from_corpus(std::uint64_t seed, std::int64_t training_count,
                                          std::int64_t validation_count, RowFormat format = {.context = 80});

}  // namespace needle
