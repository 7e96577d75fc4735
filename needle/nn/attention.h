// Multi-head attention of a sequence over itself or over a memory, and the block that holds it.
#pragma once

#include "needle/nn/cache.h"
#include "needle/nn/layers.h"
#include "needle/nn/positions.h"

namespace needle {

/// Where the norms of a block stand: before each branch, or after its sum.
enum class NormOrder { pre, post };

/// Everything that shapes a block; what is 0 follows from the rest.
struct BlockConfig {
  std::int64_t width = 128;
  std::int64_t heads = 4;
  std::int64_t key_value_heads = 0;  ///< each serves heads / key_value_heads query heads; 0: as many as heads
  std::int64_t ffn = 0;              ///< inner width of the feed-forward layer; 0: 4 width
  Activation activation = Activation::gelu;
  bool bias = true;
  NormKind norm = NormKind::layer;
  NormOrder order = NormOrder::pre;
  double norm_epsilon = 1e-5;
  double dropout = 0;                        ///< on the output of each branch
  Positions positions = Positions::learned;  ///< rotary ones are the attention's, the others the embedding's
  double rotary_base = 10000;
  bool causal = true;
  std::int64_t window = 0;  ///< 0: none
  double soft_cap = 0;      ///< 0: none
  bool strict = false;      ///< a real query without any key is an Error; not saved
  bool cross = false;       ///< a decoder's block that reads an encoder's states too; not saved

  /// The config with every 0 filled in. Throws when sizes do not fit together.
  BlockConfig resolved() const;
  /// How many numbers the parameters of such a block hold, by formula.
  std::int64_t parameter_count() const;
  /// How many numbers one of its norms holds.
  std::int64_t norm_parameter_count() const;
};

/// What the layers of a pass share about its positions.
struct PassPositions {
  NDArray real;  ///< bool [batch, time], or none: all real
  NDArray ids;   ///< i64 [batch, time]: for rotary positions

  Tensor memory = {};        ///< [batch, source time, width]: what cross-attention reads
  NDArray memory_real = {};  ///< bool [batch, source time], or none: all real
};

/// Attention of a sequence over itself; qkv holds the columns query | key | value.
struct MultiHeadAttention : Module {
  MultiHeadAttention(const BlockConfig& block, const Init& init);
  BlockConfig config;
  Linear qkv, out;
  /// x [batch, time, width] -> the same; with pass.past, new positions read the past of cache layer `layer`
  /// as well. Added to the residual where there is one.
  Tensor forward(const Tensor& x, const PassPositions& positions, const Pass& pass, int layer,
                 const Tensor& residual = {}, std::optional<DType> result = {}) const;
  void list(Parts& parts) override;
};

/// Attention of a sequence over a memory, whatever stands where (Vaswani et al. 2017, section 3.2.3).
struct CrossAttention : Module {
  CrossAttention(const BlockConfig& block, const Init& init);
  BlockConfig config;
  Linear query, key, value, out;
  /// x [batch, time, width] -> the same, each position reading positions.memory where that is real. With
  /// pass.past, keys and values of the memory are computed once and kept by cache layer `layer` (S39).
  Tensor forward(const Tensor& x, const PassPositions& positions, const Pass& pass, int layer,
                 const Tensor& residual = {}, std::optional<DType> result = {}) const;
  void list(Parts& parts) override;
};

/// x + attention, then + cross-attention (config.cross alone), then + feed-forward; norms before the
/// branches, or after the sums (S20).
struct Block : Module {
  Block(const BlockConfig& block, const Init& init);
  NormOrder order;
  Norm norm1;
  MultiHeadAttention attention;
  std::optional<Norm> cross_norm;
  std::optional<CrossAttention> cross;
  Norm norm2;
  FeedForward ffn;
  Dropout dropout;
  /// x [batch, time, width] -> the same.
  Tensor forward(const Tensor& x, const PassPositions& positions, const Pass& pass, int layer) const;
  void list(Parts& parts) override;
};

}  // namespace needle
