// Weights of 8 bits: what is rounded and by how much, the op against its definition, and whole models.
#include "needle/ops/quantized.h"

#include <cmath>

#include "needle/models/model.h"
#include "needle/ops/epilogue.h"
#include "needle/ops/ops.h"
#include "needle/optim/optimizer.h"
#include "needle/precision.h"
#include "tests/agree.h"
#include "tests/decoders.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

class Quantized : public OnDevice {
 protected:
  NDArray floats(const Shape& shape, std::uint64_t seed) const { return normal(shape, seed, DType::f32); }
};
INSTANTIATE_TEST_SUITE_P(All, Quantized, testing::ValuesIn(all_devices()), device_name);

NDArray wide(const NDArray& x) { return x.to(cpu()).cast(DType::f64); }

TEST_P(Quantized, AWeightMovesByHalfAScaleAtMost) {
  for (const Shape& shape : {Shape{1, 1}, {70, 33}, {3, 130}, {0, 4}, {4, 0}}) {
    const NDArray weight = floats(shape, 1);
    const QuantizedWeight small = quantize(weight);
    EXPECT_EQ(small.numbers.dtype(), DType::i8);
    EXPECT_EQ(small.numbers.shape(), shape);
    EXPECT_EQ(small.scale.shape(), Shape{shape[1]});
    EXPECT_EQ(small.bytes(), static_cast<std::size_t>(shape.count() + 4 * shape[1]));
    const std::vector<double> before = weight.to_vector<double>(),
                              after = dequantize(small).to_vector<double>(),
                              scale = small.scale.to_vector<double>(),
                              numbers = small.numbers.to_vector<double>();
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_LE(std::abs(before[i] - after[i]), scale[i % scale.size()] * 0.500001);
      EXPECT_LE(std::abs(numbers[i]), 127);
    }
  }
}

TEST_P(Quantized, TheLargestOfAColumnStaysAndZerosStayZeros) {
  const QuantizedWeight small =
      quantize(array({0, -127, 1e-42, 0, 63.5, 0, 0, 126.4, 1e-41}, {3, 3}, DType::f32));
  EXPECT_EQ(small.numbers.to_vector<float>(), (std::vector<float>{0, -127, 0, 0, 64, 0, 0, 126, 0}));
  EXPECT_EQ(small.scale.to_vector<float>(), (std::vector<float>{0, 1, 0}));
  // The view that is transposed, too.
  const NDArray table = floats({5, 3}, 2);
  EXPECT_TRUE(same(dequantize(quantize(table.transpose())), dequantize(quantize(table.transpose().copy()))));
}

struct Case {
  std::int64_t rows, in, out;
};

TEST_P(Quantized, LinearAgreesWithItsDefinition) {
  // Around lanes, groups of bytes, few rows and many, and blocks of columns.
  const Case cases[] = {{1, 1, 1},    {1, 64, 5},   {3, 63, 7},   {8, 65, 4},    {9, 130, 33},
                        {16, 257, 6}, {17, 70, 40}, {2, 200, 31}, {40, 33, 300}, {5, 512, 130},
                        {0, 5, 3},    {2, 0, 3},    {20, 0, 3},   {2, 5, 0},     {1, 2048, 17}};
  for (const auto& [rows, in, out] : cases) {
    const NDArray x = floats({rows, in}, 1), bias = floats({out}, 3), residual = floats({rows, out}, 4);
    const QuantizedWeight weight = quantize(floats({in, out}, 2));
    const NDArray product = matmul(wide(x), wide(dequantize(weight)));
    for (const Epilogue epilogue : {Epilogue::none, Epilogue::relu, Epilogue::gelu, Epilogue::gelu_tanh}) {
      for (const bool with_bias : {false, true}) {
        for (const bool with_residual : {false, true}) {
          SCOPED_TRACE(testing::Message() << rows << ' ' << in << ' ' << out << ' '
                                          << static_cast<int>(epilogue) << with_bias << with_residual);
          Tensor right(product);
          if (with_bias) right = right + Tensor(wide(bias));
          right = apply_epilogue(epilogue, right);
          if (with_residual) right = right + Tensor(wide(residual));
          const Tensor y = linear(Tensor(x), weight, with_bias ? Tensor(bias) : Tensor(), epilogue,
                                  with_residual ? Tensor(residual) : Tensor());
          EXPECT_EQ(y.dtype(), DType::f32);
          EXPECT_TRUE(agrees(y.array(), right.array(), 1e-5, std::sqrt(static_cast<double>(in))));
        }
      }
    }
  }
}

TEST_P(Quantized, AnyStridesRanksAndFloatsAreTaken) {
  const QuantizedWeight weight = quantize(floats({6, 5}, 1));
  const NDArray all = floats({6, 2, 4}, 2), rows = all.permute({2, 1, 0});  // [4, 2, 6]
  const Tensor y = linear(Tensor(rows), weight);
  EXPECT_EQ(y.shape(), (Shape{4, 2, 5}));
  EXPECT_TRUE(same(y.array(), linear(Tensor(rows.copy()), weight).array()));
  EXPECT_TRUE(same(linear(Tensor(rows[1][0]), weight).array(), y.array()[1][0]));
  const QuantizedWeight copied{weight.numbers.copy(), weight.scale};  // rows contiguous instead of columns
  EXPECT_TRUE(same(linear(Tensor(rows), copied).array(), y.array()));
  EXPECT_EQ(linear(Tensor(rows.cast(DType::bf16)), weight).dtype(), DType::f32);
  EXPECT_EQ(linear(Tensor(rows), weight, {}, Epilogue::none, {}, DType::bf16).dtype(), DType::bf16);
}

TEST_P(Quantized, ARowIsTheSameWhateverRowsGoWithIt) {
  for (const std::int64_t in : {48, 150}) {
    const QuantizedWeight weight = quantize(floats({in, 37}, 1));
    const NDArray x = floats({40, in}, 2);
    const NDArray many = linear(Tensor(x), weight).array();
    for (std::int64_t rows = 1; rows <= 8; ++rows) {
      const NDArray few = linear(Tensor(x.slice(0, 0, rows)), weight).array();
      for (std::int64_t row = 0; row < rows; ++row) {
        EXPECT_TRUE(same(few[row], linear(Tensor(x[row]), weight).array()));
        EXPECT_TRUE(agrees(many[row], few[row], 1e-5));
      }
    }
  }
}

TEST_P(Quantized, WhatCannotBeIsAnErrorThatSaysWhy) {
  const QuantizedWeight weight = quantize(floats({3, 2}, 1));
  const Tensor x(floats({4, 3}, 2));
  EXPECT_TRUE(contains(error_of([&] { quantize(floats({3}, 1)); }), {"quantize", "[in, out]", "[3]"}));
  EXPECT_TRUE(contains(error_of([&] { quantize(floats({3, 2}, 1).cast(DType::bf16)); }), {"f32", "bf16"}));
  EXPECT_TRUE(contains(error_of([&] {
                         quantize(array({1, NAN}, {1, 2}, DType::f32));
                       }),
                       {"column 1", "finite"}));
  EXPECT_TRUE(contains(error_of([&] { linear(Tensor(floats({4, 2}, 2)), weight); }), {"3", "[4, 2]"}));
  EXPECT_TRUE(contains(error_of([&] { linear(x, weight, Tensor(floats({3}, 1))); }), {"bias", "[2]", "[3]"}));
  EXPECT_TRUE(contains(error_of([&] { linear(x, weight, {}, Epilogue::none, x); }),
                       {"residual", "[4, 2]", "[4, 3]"}));
  const Tensor trained(floats({4, 3}, 2), true);
  EXPECT_TRUE(contains(error_of([&] { linear(trained, weight); }), {"linear_int8", "NoGrad"}));
  const NoGrad off;
  EXPECT_EQ(linear(trained, weight).shape(), (Shape{4, 2}));
}

TEST_P(Quantized, NothingComputesWithInt8) {
  const NDArray numbers = quantize(floats({3, 2}, 1)).numbers;
  EXPECT_TRUE(same(numbers.cast(DType::f32).cast(DType::i8), numbers));
  EXPECT_TRUE(same(numbers.to(cpu()), numbers.copy().to(cpu())));
  EXPECT_TRUE(contains(error_of([&] { binary(Add{}, numbers, numbers); }), {"i8", "cast"}));
  EXPECT_TRUE(contains(error_of([&] { unary(Negate{}, numbers); }), {"i8"}));
  EXPECT_TRUE(contains(error_of([&] { reduce(Sum{}, numbers); }), {"i8"}));
  EXPECT_FALSE(is_floating(DType::i8));
}

std::vector<ModelConfig> all_kinds() {
  std::vector<ModelConfig> all;
  for (const NamedDecoder& decoder : various_decoders()) all.emplace_back(decoder.config);
  for (const ModelKind kind : {ModelKind::encoder, ModelKind::encoder_decoder, ModelKind::rnn, ModelKind::gru,
                               ModelKind::lstm, ModelKind::convolution, ModelKind::patches}) {
    for (const bool tied : {false, true}) {
      ModelConfig config = DecoderConfig::of_size(13, 11, 12, 2, 3);
      config.kind = kind;
      config.tied = tied && kind != ModelKind::patches;
      config.causal = kind != ModelKind::encoder && kind != ModelKind::patches;
      config.features = 5;
      all.push_back(config);
    }
  }
  return all;
}

TEST_P(Quantized, LogitsOfEveryModelStayNearThoseOfFloats) {
  for (const ModelConfig& config : all_kinds()) {
    SCOPED_TRACE(testing::Message() << static_cast<int>(config.kind) << ' ' << config.tied);
    Generator random(3);
    const std::unique_ptr<SequenceModel> model = make_model(config, random, device());
    enlarge_weights(*model, random);
    SequenceInput input = padded({{1, 4, 12, 7, 3}, {1, 9}}, PaddingSide::left, device());
    if (config.kind == ModelKind::encoder_decoder) input.source_ids = input.ids;
    if (config.kind == ModelKind::patches) {
      input = {};
      input.features = floats({2, 4, 5}, 4);
    }
    const NoGrad off;
    const NDArray right = model->forward(input).array();
    quantize_weights(*model);
    // Each map rounds its weights by less than 1 % of their deviation.
    EXPECT_TRUE(agrees(model->forward(input).array(), right, 0.06));
    EXPECT_TRUE(contains(error_of([&] { model->parameters(); }), {"quantised", "saved", "trained"}));
    EXPECT_TRUE(contains(error_of([&] { quantize_weights(*model); }), {"quantised"}));
    {
      const GradMode on(true);
      const std::string error = error_of([&] { model->forward(input); });
      EXPECT_TRUE(contains(error, {"linear_int8", "NoGrad"}));
    }
  }
}

TEST_P(Quantized, MemoryFallsByThreeQuartersOfTheMaps) {
  constexpr std::int64_t kVocabulary = 200, kWidth = 64, kLayers = 2;
  Generator random(3);
  for (const bool tied : {false, true}) {
    DecoderConfig config = DecoderConfig::of_size(kVocabulary, 16, kWidth, kLayers, 4);
    config.tied = tied;
    Decoder model(config, random, device());
    const auto live = [&] { return static_cast<std::int64_t>(device()->memory_stats().live); };
    const std::int64_t before = live();
    quantize_weights(model);
    // Of a weight [in, out] 4 in out bytes become in out + 4 out; a tied head's come on top.
    const std::int64_t maps = kLayers * (3 * 12 * kWidth * kWidth - 4 * 9 * kWidth);
    const std::int64_t head = tied ? -kVocabulary * (kWidth + 4) : kVocabulary * (3 * kWidth - 4);
    EXPECT_EQ(before - live(), maps + head);
  }
}

TEST_P(Quantized, CachedLogitsEqualFullOnes) {
  Decoder model = make_decoder(DecoderConfig::of_size(13, 11, 12, 2, 3), device(), DType::f32);
  quantize_weights(model);
  const NoGrad off;
  const TokenRow row{1, 4, 12, 7, 3, 2};
  const NDArray full = logits_alone(model, row, device());
  Cache cache = model.empty_state(1, 6);
  for (std::size_t t = 0; t < row.size(); ++t) {
    const SequenceInput input{ids({row[t]}, {1, 1}), {}, {}};
    const NDArray logits = model.forward(input, {false, nullptr, &cache}).array();
    EXPECT_TRUE(agrees(logits[0][0], full[static_cast<std::int64_t>(t)], 1e-5));
  }
}

TEST_P(Quantized, ATokenAsksTheSystemForNoMemory) {
  constexpr std::int64_t kTokens = 30, kFirst = 5;
  for (const bool quantized : {false, true}) {
    Decoder model = make_decoder(DecoderConfig::of_size(130, 40, 24, 2, 3), device(), DType::f32);
    if (quantized) quantize_weights(model);
    const NoGrad off;
    Cache cache = model.empty_state(2, kTokens);
    std::uint64_t asked = 0;
    for (std::int64_t t = 0; t < kTokens; ++t) {
      if (t == kFirst) asked = device()->memory_stats().system_allocations;
      model.forward({ids({t, 5}, {2, 1}), {}, {}}, {false, nullptr, &cache});
    }
    EXPECT_EQ(device()->memory_stats().system_allocations, asked);
  }
}

}  // namespace
}  // namespace needle
