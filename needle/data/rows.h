// Batches: rows of tokens padded to one width, and windows of a long stream. Inputs, real-token mask and
// labels are three separate things, and a row's length, never a token's id, says what is padding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "needle/data/tokenizer.h"

namespace needle {

using TokenRow = std::vector<std::int64_t>;

/// Where PAD stands in a row that is shorter than its batch.
enum class PaddingSide { right, left };

/// How rows become a batch.
struct RowFormat {
  std::int64_t context = 0;  ///< greatest width of a batch, in tokens
  PaddingSide padding = PaddingSide::right;
  std::int64_t ignore_index = -100;  ///< the label that the loss leaves out
  std::int64_t width_multiple = 16;  ///< widths are rounded up to it, never above the context
  bool crop = false;                 ///< cut rows that are too long, instead of an error
  std::int64_t begin_id = kBeginId, end_id = kEndId;  ///< BOS and EOS of the rows' vocabulary
};

/// One batch on the host; each vector is [rows, time] in row-major order.
struct Batch {
  std::int64_t rows = 0, time = 0;
  std::vector<std::int64_t> ids;        ///< inputs, PAD where there is no token
  std::vector<std::int64_t> positions;  ///< position of each token in its row, counted without PAD
  std::vector<std::int64_t> labels;     ///< the token to predict, or the ignore index
  std::vector<std::uint8_t> real;       ///< 1 where the input is a token, 0 where it is PAD
  std::int64_t valid_targets = 0;       ///< labels that are scored

  /// How far back the first token lies that tells the label; -1 where nobody knows. Empty for most data.
  std::vector<std::int64_t> distances;
  std::int64_t source_time = 0;  ///< what is translated: source_ids and source_real [rows, source time]
  std::vector<std::int64_t> source_ids;   ///< empty where nothing is
  std::vector<std::uint8_t> source_real;  ///< 1 where the source has a token
  std::int64_t feature_width = 0;  ///< positions that are no tokens: features [rows, time, feature width]
  std::vector<float> features;     ///< empty where ids are read
};

/// Rows without BOS and EOS: the inputs of each are BOS and its tokens, its labels the tokens and EOS. A row
/// of n tokens needs a context of n + 1; a longer one is an error that names it, or is cropped: then its EOS
/// is not scored.
Batch make_rows_batch(std::span<const TokenRow> rows, const RowFormat& format);

/// Whole sequences, special tokens included, whatever their ids: each input is scored on the token after it,
/// the last one not at all. [B, a, b, E] becomes inputs [B, a, b, E] and labels [a, b, E, ignored].
Batch make_shifted_batch(std::span<const TokenRow> sequences, const RowFormat& format);

/// Windows of a text without padding: for each start the `context` tokens from it on, each scored on the
/// next, so that a window reads context + 1 tokens. Throws on a start outside [0, tokens - context).
Batch make_stream_batch(std::span<const std::int64_t> tokens, std::span<const std::int64_t> starts,
                        std::int64_t context);

/// Position of each entry of a [rows, time] mask: the real tokens of its row are counted from 0, and PAD gets
/// max(running count - 1, 0).
std::vector<std::int64_t> positions_of(std::span<const std::uint8_t> real, std::int64_t time);

/// The column of each row's last real token, where its next-token logits sit, on either padding side. Throws
/// on a row without a real token.
std::vector<std::int64_t> last_real_columns(const Batch& batch);

}  // namespace needle
