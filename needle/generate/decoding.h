// Rows of tokens that grow, and the logits of what follows each of them.
#pragma once

#include <optional>

#include "needle/data/rows.h"
#include "needle/data/tokenizer.h"
#include "needle/models/sequence_model.h"

namespace needle {

/// What happens to a row that fills the context.
enum class Overflow {
  stop,      ///< it cannot grow
  recompute  ///< its beginning is dropped, and the rest read again
};

/// How rows are read.
struct DecodingSettings {
  std::int64_t room = 64;             ///< tokens that will be added to a row, at most
  bool cache = true;                  ///< false: every pass reads the whole rows
  std::optional<DType> storage = {};  ///< of keys and values: f32, f16 or bf16; none: the weights' type
  std::int64_t chunk = 0;             ///< positions of one pass over the prompts; 0: all at once
  PaddingSide padding = PaddingSide::left;
  std::int64_t pad = kPadId;  ///< what fills up shorter prompts
  Overflow overflow = Overflow::stop;
};

/// Where the window of a row of `length` tokens begins: 0 while it fits `context` (0: always); then, as often
/// as it fills the context, half a context is dropped. So a window depends on its row alone.
std::int64_t window_start(std::int64_t length, std::int64_t context);

/// A batch of rows in front of a model. Prompts are read in one pass or in chunks, then one token a row at a
/// time with the past in a cache. An answer does not depend on the cache, the chunks, the padding or the
/// other rows, but for rounding.
class Decoding {
 public:
  /// Reads the prompts, of any lengths but 0. `sources`, one a row, is what an encoder-decoder translates.
  /// An Error for models that read both ways and, where rows may not overflow, for prompts past the context.
  Decoding(SequenceModel& model, std::vector<TokenRow> prompts, const DecodingSettings& settings = {},
           Device device = cpu(), std::vector<TokenRow> sources = {});

  const std::vector<TokenRow>& rows() const { return rows_; }
  /// Of the next token of each row: [rows, vocabulary].
  const NDArray& logits() const { return logits_; }
  /// Whether a row has no room for a further token.
  bool is_full(std::size_t row) const;
  /// Adds a token to each row. An Error for a row that is full.
  void push(std::span<const std::int64_t> ids);
  /// Goes on with these rows, in this order; a row may occur several times. logits() waits for the next push.
  void select(std::span<const std::int64_t> rows);

  /// Bytes of the cache as allocated; 0 without one.
  std::size_t cache_bytes() const { return cache_ ? cache_->bytes() : 0; }
  /// Room of the cache, in positions of a row.
  std::int64_t cache_longest() const { return cache_ ? cache_->longest() : 0; }
  /// How often all windows were read from their beginnings, the first time included.
  std::int64_t rebuilds() const { return rebuilds_; }

 private:
  void read_windows();
  void read(const SequenceInput& input, std::span<const std::int64_t> lengths);
  SequenceInput padded(const std::vector<TokenRow>& rows, bool as_source) const;
  TokenRow window(const TokenRow& row) const;

  SequenceModel* model_;
  std::vector<TokenRow> rows_, sources_;
  DecodingSettings settings_;
  Device device_;
  std::optional<Cache> cache_;
  NDArray logits_;
  std::int64_t pushed_ = 0, rebuilds_ = 0;
};

}  // namespace needle
