// Where batches come from: the interface that a user's own data set implements, and two of ours.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "needle/data/rows.h"
#include "needle/data/tokenizer.h"

namespace needle {

/// Where a run stands in its training data. With the data set's seed it fixes all batches still to come,
/// whatever the batch sizes before it: saving it saves the data order.
struct DataPosition {
  std::int64_t examples_seen = 0;
};

/// Training batches in a fixed pseudo-random order and a fixed list of validation batches. To bring your own
/// data, derive from it.
class Dataset {
 public:
  virtual ~Dataset() = default;

  /// The next `size` training examples after `position`, which moves past them.
  virtual Batch next_training_batch(DataPosition& position, std::int64_t size) = 0;
  /// All validation examples in a fixed order, `size` to a batch (the last may have fewer).
  virtual std::vector<Batch> validation_batches(std::int64_t size) const = 0;
  /// How many training examples make one pass over the data.
  virtual std::int64_t examples_per_epoch() const = 0;

  /// The tokens' meaning; it is saved with the model.
  virtual const Tokenizer& tokenizer() const = 0;
  /// Number of ids that a model of it knows.
  virtual std::int64_t vocabulary() const { return tokenizer().vocabulary_size(); }
  /// A number that changes with any token, or with the split: a run goes on only with the data it began with.
  virtual std::uint64_t hash() const = 0;
  /// What the data is, in one line.
  virtual std::string description() const = 0;
  /// The least validation loss that any model can reach, in nats per valid target, where it is known.
  virtual std::optional<double> floor() const { return std::nullopt; }
  /// The accuracy of whoever doesn't see what a label depends on, where it is known.
  virtual std::optional<double> chance() const { return std::nullopt; }
  /// The most positions of a row, which a model must be able to read; 0: what its context was made for.
  virtual std::int64_t longest_row() const { return 0; }
  /// Whether rows are translations of a source.
  virtual bool has_source() const { return false; }
  /// Numbers of a position where positions are no tokens; 0: they are.
  virtual std::int64_t feature_width() const { return 0; }
};

/// FNV-1a, 64 bits, over `ids` as eight little-endian bytes each; goes on from `hash` (Fowler, Noll and Vo).
std::uint64_t hash_tokens(std::span<const std::int64_t> ids, std::uint64_t hash = 0xCBF29CE484222325);

/// What every data set here is told besides its tokens.
struct DatasetSettings {
  Tokenizer tokenizer = Tokenizer::bytes();
  RowFormat format;        ///< its context is the window of a stream
  std::uint64_t seed = 0;  ///< of the training order
  std::string name;        ///< begins the description and names the data in errors
  std::string remark;      ///< ends the description
  std::optional<double> floor;
};

/// Independent rows, shuffled anew in every epoch by a stream of (seed, epoch).
class RowsDataset : public Dataset {
 public:
  /// Rows without BOS and EOS; throws if either part is empty or a row is too long for the context.
  RowsDataset(std::vector<TokenRow> training, std::vector<TokenRow> validation, DatasetSettings settings);

  Batch next_training_batch(DataPosition& position, std::int64_t size) override;
  std::vector<Batch> validation_batches(std::int64_t size) const override;
  std::int64_t examples_per_epoch() const override { return static_cast<std::int64_t>(training_.size()); }
  const Tokenizer& tokenizer() const override { return settings_.tokenizer; }
  std::uint64_t hash() const override { return hash_; }
  std::string description() const override;
  std::optional<double> floor() const override { return settings_.floor; }

 private:
  const TokenRow& training_row(std::int64_t example);

  std::vector<TokenRow> training_, validation_;
  DatasetSettings settings_;
  std::uint64_t hash_;
  std::vector<std::size_t> order_;  // of the epoch it was last asked for
  std::int64_t order_epoch_ = -1;
};

/// Windows of a long text. Training windows start anywhere, drawn by a stream of (seed, example); validation
/// windows follow one another without overlap, and a rest shorter than a window is left out.
class StreamDataset : public Dataset {
 public:
  /// Throws if either part has fewer than context + 1 tokens.
  StreamDataset(std::vector<std::int64_t> training, std::vector<std::int64_t> validation,
                DatasetSettings settings);

  Batch next_training_batch(DataPosition& position, std::int64_t size) override;
  std::vector<Batch> validation_batches(std::int64_t size) const override;
  /// As many windows as cover the training text once.
  std::int64_t examples_per_epoch() const override;
  const Tokenizer& tokenizer() const override { return settings_.tokenizer; }
  std::uint64_t hash() const override { return hash_; }
  std::string description() const override;
  std::optional<double> floor() const override { return settings_.floor; }
  /// How many places a training window can start at: tokens - context.
  std::int64_t training_starts() const;

 private:
  std::vector<std::int64_t> training_, validation_;
  DatasetSettings settings_;
  std::uint64_t hash_;
};

}  // namespace needle
