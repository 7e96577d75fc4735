// What tests of decoders share: a table of very different ones, and rows of tokens as padded batches.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "needle/models/decoder.h"
#include "needle/train/trainer.h"
#include "tests/on_devices.h"

namespace needle {

struct NamedDecoder {
  std::string name;
  DecoderConfig config;
};

/// A small decoder with odd sizes, of which `change` changes something.
template <class Change>
NamedDecoder changed_decoder(std::string name, Change&& change) {
  DecoderConfig config = DecoderConfig::of_size(13, 11, 12, 2, 3);
  change(config);
  return {std::move(name), config};
}

/// One decoder for each thing that can be chosen, and some where many choices meet.
inline std::vector<NamedDecoder> various_decoders() {
  using Config = DecoderConfig;
  std::vector<NamedDecoder> all{
      changed_decoder("plain", [](Config&) {}),
      changed_decoder("own head", [](Config& c) { c.tied = false; }),
      changed_decoder("without biases", [](Config& c) { c.bias = c.tied = false; }),
      changed_decoder("one head of odd width", [](Config& c) { c.width = 7, c.heads = 1, c.ffn = 9; }),
      changed_decoder("one key head for all", [](Config& c) { c.key_value_heads = 1; }),
      changed_decoder("two key heads for four", [](Config& c) { c.heads = 4, c.key_value_heads = 2; }),
      changed_decoder("window", [](Config& c) { c.window = 3; }),
      changed_decoder("soft cap", [](Config& c) { c.soft_cap = 0.5; }),
      changed_decoder("rotary", [](Config& c) { c.positions = Positions::rotary; }),
      changed_decoder("sinusoidal", [](Config& c) { c.positions = Positions::sinusoidal; }),
      changed_decoder("post-norm", [](Config& c) { c.order = NormOrder::post; }),
      changed_decoder("rms norm", [](Config& c) { c.norm = NormKind::rms; }),
      changed_decoder("relu", [](Config& c) { c.activation = Activation::relu; }),
      changed_decoder("tanh gelu", [](Config& c) { c.activation = Activation::gelu_tanh; }),
      changed_decoder("gated", [](Config& c) { c.activation = Activation::gated, c.ffn = 10; }),
      changed_decoder("other beginning", [](Config& c) { c.initialisation = Initialisation::uniform; }),
      changed_decoder("gated rotary rms window", [](Config& c) {
        c.activation = Activation::gated, c.positions = Positions::rotary, c.norm = NormKind::rms;
        c.window = 4, c.heads = 6, c.key_value_heads = 3, c.bias = false, c.tied = false;
      })};
  Generator random(77);
  const auto coin = [&random] { return random.below(2) == 1; };
  for (int i = 1; i <= 4; ++i) {
    all.push_back(changed_decoder("random " + std::to_string(i), [&](Config& c) {
      c.key_value_heads = 1 + random.below(2);
      c.heads = c.key_value_heads * (1 + random.below(3));
      c.width = c.heads * 2 * (1 + random.below(3));
      c.layers = 1 + random.below(3);
      c.ffn = 3 + random.below(20);
      c.activation = static_cast<Activation>(random.below(4));
      c.positions = static_cast<Positions>(random.below(3));
      c.norm = coin() ? NormKind::rms : NormKind::layer;
      c.order = coin() ? NormOrder::post : NormOrder::pre;
      c.bias = coin();
      c.tied = coin();
      c.window = coin() ? 1 + random.below(5) : 0;
      c.soft_cap = coin() ? 1.5 : 0;
    }));
  }
  return all;
}

/// Makes weights large enough that every part of a model shows in what it gives.
inline void enlarge_weights(Module& model, Generator& random) {
  for (Parameter& parameter : model.parameters()) {
    const NDArray& array = parameter.tensor.array();
    const Distribution noise{Distribution::Kind::normal, 0, 0.3};
    const NDArray moved = NDArray::random(noise, array.shape(), random, array.dtype(), array.device());
    parameter.tensor.set_array(binary(Add{}, array, moved));
  }
}

/// Whether every parameter has a gradient, of finite numbers that are not all 0; those of a key's bias are,
/// since no softmax sees what all its scores share.
inline testing::AssertionResult gradients_are_finite(Module& model) {
  for (const Parameter& parameter : model.parameters()) {
    const NDArray& gradient = parameter.tensor.grad();
    if (!gradient.defined()) return testing::AssertionFailure() << parameter.name << " has no gradient";
    const double magnitudes = reduce(Sum{}, unary(Abs{}, gradient)).item();
    if (!std::isfinite(magnitudes) || (magnitudes == 0 && !parameter.name.ends_with("key.bias")))
      return testing::AssertionFailure() << "the gradient of " << parameter.name << " sums to " << magnitudes;
  }
  return testing::AssertionSuccess();
}

/// A decoder of large weights.
inline Decoder make_decoder(const DecoderConfig& config, Device device, DType dtype, std::uint64_t seed = 3) {
  Generator random(seed);
  Decoder model(config, random, device, dtype);
  enlarge_weights(model, random);
  return model;
}

inline Decoder make_decoder(const DecoderConfig& config, Device device) {
  return make_decoder(config, device, exact_dtype(device));
}

/// Rows of tokens as one batch, `width` wide (0: as the longest), PAD on the given side.
inline SequenceInput padded(const std::vector<TokenRow>& rows, PaddingSide side, Device device,
                            std::int64_t width = 0, std::int64_t pad = 0) {
  std::int64_t time = width;
  for (const TokenRow& row : rows) time = std::max<std::int64_t>(time, std::ssize(row));
  std::vector<std::int64_t> ids;
  std::vector<std::uint8_t> real;
  for (const TokenRow& row : rows) {
    const std::int64_t missing = time - std::ssize(row);
    const std::int64_t before = side == PaddingSide::left ? missing : 0;
    for (std::int64_t t = 0; t < time; ++t) {
      const bool inside = t >= before && t < before + std::ssize(row);
      ids.push_back(inside ? row[static_cast<std::size_t>(t - before)] : pad);
      real.push_back(inside);
    }
  }
  const Shape shape{std::ssize(rows), time};
  return {NDArray::from(ids, shape, device), NDArray::from(real, shape, device), {}};
}

/// Logits of one row without any padding, [time, vocabulary].
inline NDArray logits_alone(Decoder& model, const TokenRow& row, Device device) {
  const NoGrad off;
  return model.forward({NDArray::from(row, {1, std::ssize(row)}, device), {}, {}}).array()[0];
}

}  // namespace needle
