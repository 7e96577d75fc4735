// Everything that defines a sequence model.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "needle/nn/attention.h"

namespace needle {

/// Everything that defines a decoder: the shape of its blocks, and what stands around them.
struct DecoderConfig : BlockConfig {
  std::int64_t vocabulary = 0;
  std::int64_t context = 64;
  std::int64_t layers = 4;
  bool tied = true;  ///< head = token table transposed, without bias
  Initialisation initialisation = Initialisation::normal;

  /// The default one with these sizes.
  static DecoderConfig of_size(std::int64_t vocabulary, std::int64_t context, std::int64_t width,
                               std::int64_t layers, std::int64_t heads);
  /// The config with every 0 filled in. Throws when sizes do not fit together.
  DecoderConfig resolved() const;
  /// How many numbers the parameters of such a decoder hold, by formula.
  std::int64_t parameter_count() const;
};

/// Which sequence model.
enum class ModelKind { decoder, encoder, encoder_decoder, rnn, gru, lstm, convolution, patches };

/// Any of them. What a kind has no use for, it ignores.
struct ModelConfig : DecoderConfig {
  ModelConfig() = default;
  ModelConfig(const DecoderConfig& decoder) : DecoderConfig(decoder) {}
  ModelKind kind = ModelKind::decoder;
  std::int64_t kernel = 3;  ///< positions that a convolution reads
  std::vector<std::int64_t> dilations = {
      1};  ///< steps between them, layer after layer; over again where there are more layers
  std::int64_t features = 0;  ///< numbers of a position that is no token (patches)

  bool has_attention() const {
    return kind == ModelKind::decoder || kind == ModelKind::encoder || kind == ModelKind::encoder_decoder ||
           kind == ModelKind::patches;
  }
  bool is_recurrent() const {
    return kind == ModelKind::rnn || kind == ModelKind::gru || kind == ModelKind::lstm;
  }
  /// The dilation of a layer.
  std::int64_t dilation(std::int64_t layer) const {
    return dilations[static_cast<std::size_t>(layer) % dilations.size()];
  }
  /// How far back a state reads, itself included: 1 + (kernel - 1) sum of dilations for a convolution (S29),
  /// 1 + layers (window - 1) for attention within a window; 0: everything before it.
  std::int64_t receptive_field() const;
  /// How many numbers the parameters of such a model hold, by formula.
  std::int64_t parameter_count() const;
  /// The config with every 0 filled in. Throws when sizes do not fit together.
  ModelConfig resolved() const;
};

void to_json(nlohmann::json& json, const ModelConfig& config);
/// Unknown names and impossible values are an Error; what older versions did not know may be missing.
void from_json(const nlohmann::json& json, ModelConfig& config);

}  // namespace needle
