// What layers keep of earlier positions, so that a step feeds only new tokens: attention its keys and values,
// others what they say.
#pragma once

#include <span>
#include <vector>

#include "needle/nn/module.h"

namespace needle {

/// Keys and values of one layer, [batch, key heads, longest, width], written in place.
struct LayerCache {
  NDArray key, value;
};

/// One LayerCache a layer, and which of the past positions hold real tokens. Valid only under a causal mask,
/// fixed positions and fixed weights: what a position has read must never change (S38).
class Cache {
 public:
  /// Room for `longest` positions of `batch` rows; allocated once. Numbers are stored as `dtype`: f32, or f16
  /// or bf16 in half the room.
  Cache(int layers, std::int64_t batch, std::int64_t key_heads, std::int64_t longest, std::int64_t key_width,
        DType dtype, Device device);

  /// For layers without attention, which keep what they like in kept().
  Cache(int layers, std::int64_t batch, Device device)
      : batch_(batch), kept_(static_cast<std::size_t>(layers)), device_(device) {}

  /// A recurrent layer's state, the last inputs of a convolution; empty before the first pass.
  std::vector<NDArray>& kept(int layer) { return kept_.at(static_cast<std::size_t>(layer)); }

  std::int64_t batch() const { return batch_; }
  std::int64_t longest() const { return longest_; }
  /// Positions held so far.
  std::int64_t past() const { return past_; }
  /// Real tokens of each row so far: the position id of its next token.
  const std::vector<std::int64_t>& lengths() const { return lengths_; }
  /// Bytes of all layers: 2 batch layers longest key-heads width size (S36).
  std::size_t bytes() const;

  /// Ties the cache to a model and its weights as they are now, the first time; later on an Error for another
  /// model, and where weights have changed since.
  void serve(Module& model);
  /// Goes on with these rows, in this order; a row may occur several times. Rows that are left out are
  /// forgotten.
  void select(std::span<const std::int64_t> rows);

  /// Announces `time` new positions with `real` (bool [batch, time], or none: all real). Throws past the end.
  void begin(std::int64_t time, const NDArray& real);
  /// Writes new keys and values [batch, key heads, time, width] of a layer behind the past, and gives all so
  /// far, in the type of the new ones.
  LayerCache extend(int layer, const NDArray& key, const NDArray& value);
  /// Which keys are real, bool [batch, past + new positions]; none when all are.
  const NDArray& key_mask() const { return key_mask_; }
  /// Ends the pass: the new positions are past.
  void finish();

 private:
  struct Weight {
    Tensor tensor;
    std::weak_ptr<const Storage> storage;
    std::uint64_t writes;
  };

  const Module* model_ = nullptr;
  std::vector<Weight> weights_;
  std::int64_t batch_, longest_ = 0, past_ = 0, time_ = 0;
  std::vector<LayerCache> layers_;
  std::vector<std::vector<NDArray>> kept_;
  std::vector<std::uint8_t> real_;  // [batch, longest]
  std::vector<std::int64_t> lengths_;
  NDArray key_mask_;
  Device device_;
};

}  // namespace needle
