// What decoding promises for every kind of model: cached = chunked = full, padded rows equal rows alone, the
// window that slides, and caches that must not be used.
#include "needle/generate/decoding.h"

#include <gtest/gtest.h>

#include "needle/counters.h"
#include "needle/models/encoder_decoder.h"
#include "tests/agree.h"
#include "tests/token_models.h"

namespace needle {
namespace {

/// All kinds that can go on from a past.
std::vector<NamedModel> decoding_models() {
  std::vector<NamedModel> all = various_models();
  for (const NamedDecoder& decoder : various_decoders()) all.push_back({decoder.name, decoder.config});
  for (const NormOrder order : {NormOrder::pre, NormOrder::post}) {
    ModelConfig translator = DecoderConfig::of_size(13, 11, 12, 2, 3);
    translator.kind = ModelKind::encoder_decoder;
    translator.order = order;
    all.push_back({order == NormOrder::pre ? "encoder-decoder" : "post-norm encoder-decoder", translator});
  }
  return all;
}

const std::vector<TokenRow> kRows{{1, 4, 12, 7, 3}, {9}, {8, 2, 2}};
const std::vector<TokenRow> kSources{{3, 3, 9}, {10, 1, 2, 5, 12, 4}, {6}};
const std::vector<TokenRow> kEndings{{5, 1, 11, 2}, {2, 2, 7, 12}, {4, 6, 10, 1}};

class DecodingTest : public testing::TestWithParam<std::tuple<Device, NamedModel>> {
 protected:
  Device device() const { return std::get<0>(GetParam()); }
  const ModelConfig& config() const { return std::get<1>(GetParam()).config; }
  /// An emulated device takes its time.
  bool is_slow() const { return device() != cpu(); }
  std::vector<std::int64_t> chunks() const {
    return is_slow() ? std::vector<std::int64_t>{0, 2} : std::vector<std::int64_t>{0, 1, 2, 3};
  }
  std::size_t steps() const { return is_slow() ? 2 : 4; }
  bool translates() const { return config().kind == ModelKind::encoder_decoder; }
  std::unique_ptr<SequenceModel> model(DType dtype) const { return make_named(config(), device(), dtype); }
  std::unique_ptr<SequenceModel> model() const { return model(exact_dtype(device())); }
  std::vector<TokenRow> sources(const std::vector<std::size_t>& rows) const {
    std::vector<TokenRow> chosen;
    for (const std::size_t row : rows) {
      if (translates()) chosen.push_back(kSources[row]);
    }
    return chosen;
  }
  /// Logits of what follows a row, without any cache: [vocabulary].
  NDArray full(SequenceModel& of, const TokenRow& tokens, std::size_t row) const {
    const NoGrad off;
    SequenceInput input{NDArray::from(tokens, {1, std::ssize(tokens)}, device()), {}, {}};
    if (translates())
      input.source_ids = NDArray::from(kSources[row], {1, std::ssize(kSources[row])}, device());
    return of.forward(input).array()[0][-1];
  }
};

TEST_P(DecodingTest, S34_CachedLogitsAreThoseOfTheFullPassInPaddedBatches) {
  const auto model = this->model();
  for (const PaddingSide side : {PaddingSide::left, PaddingSide::right}) {
    for (const std::int64_t chunk : chunks()) {
      for (const bool cache : {true, false}) {
        if (!cache && (chunk > 0 || is_slow())) continue;
        DecodingSettings settings;
        settings.room = 5;
        settings.padding = side;
        settings.chunk = chunk;
        settings.cache = cache;
        settings.pad = 11;
        Decoding batch(*model, kRows, settings, device(), sources({0, 1, 2}));
        std::vector<TokenRow> rows = kRows;
        for (std::size_t step = 0; step <= steps(); ++step) {
          for (std::size_t row = 0; row < rows.size(); ++row) {
            EXPECT_TRUE(agrees(batch.logits()[static_cast<std::int64_t>(row)], full(*model, rows[row], row),
                               bound_on(device(), 1e-12)))
                << "chunk " << chunk << ", step " << step << ", row " << row;
          }
          if (step == steps()) break;
          std::vector<std::int64_t> next;
          for (std::size_t row = 0; row < rows.size(); ++row) next.push_back(kEndings[row][step]);
          batch.push(next);
          rows = batch.rows();
        }
        EXPECT_EQ(batch.rebuilds(), cache ? 1 : 5);
      }
    }
  }
}

TEST_P(DecodingTest, S34_RowsThatLeaveAndReturnDoNotChangeTheOthers) {
  const auto model = this->model();
  Decoding batch(*model, kRows, {.room = 5}, device(), sources({0, 1, 2}));
  const std::vector<std::vector<std::int64_t>> choices{{0, 2}, {1, 0, 1}};
  std::vector<std::size_t> now{0, 1, 2};
  for (const std::vector<std::int64_t>& choice : choices) {
    batch.select(choice);
    std::vector<std::size_t> chosen;
    std::vector<std::int64_t> next;
    for (const std::int64_t i : choice) chosen.push_back(now[static_cast<std::size_t>(i)]);
    now = chosen;
    for (std::size_t i = 0; i < now.size(); ++i) next.push_back(kEndings[i][1]);
    batch.push(next);
    for (std::size_t i = 0; i < now.size(); ++i) {
      EXPECT_TRUE(agrees(batch.logits()[static_cast<std::int64_t>(i)], full(*model, batch.rows()[i], now[i]),
                         bound_on(device(), 1e-12)));
    }
  }
}

TEST_P(DecodingTest, StorageIn16BitsChangesLogitsLittle) {
  const auto model = this->model(DType::f32);
  for (const DType storage : {DType::f16, DType::bf16}) {
    Decoding exact(*model, kRows, {.room = 3}, device(), sources({0, 1, 2}));
    Decoding batch(*model, kRows, {.room = 3, .storage = storage}, device(), sources({0, 1, 2}));
    for (std::size_t step = 0; step < 2; ++step) {
      const std::vector<std::int64_t> next{kEndings[0][step], kEndings[1][step], kEndings[2][step]};
      exact.push(next);
      batch.push(next);
      EXPECT_TRUE(agrees(batch.logits(), exact.logits(), 1e-2)) << name_of(storage);
    }
    if (config().kind == ModelKind::decoder) {
      EXPECT_EQ(2 * batch.cache_bytes(), exact.cache_bytes());
    }
  }
}

TEST_P(DecodingTest, AWindowThatSlidesIsReadAgainFromItsBeginning) {
  const auto model = this->model();
  const std::int64_t context = model->context();
  for (const bool cache : {true, false}) {
    Decoding batch(*model, kRows, {.room = 20, .cache = cache, .overflow = Overflow::recompute}, device(),
                   sources({0, 1, 2}));
    const std::int64_t most = is_slow() ? 8 : 14;
    for (std::int64_t step = 0; step < most; ++step) {
      if (is_slow() && !cache) break;
      batch.push(std::vector<std::int64_t>{step % 13, (step * 5 + 2) % 13, (step * 3 + 1) % 13});
      for (std::size_t row = 0; row < 3 && (!is_slow() || step + 2 >= most); ++row) {
        const TokenRow& all = batch.rows()[row];
        const TokenRow window(all.begin() + window_start(std::ssize(all), context), all.end());
        EXPECT_TRUE(agrees(batch.logits()[static_cast<std::int64_t>(row)], full(*model, window, row),
                           bound_on(device(), 1e-12)))
            << "step " << step << ", row " << row;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, DecodingTest, testing::ValuesIn(on_all_devices(decoding_models())),
                         model_and_device);

TEST(Windows, DropHalfAContextAsOftenAsItIsFull) {
  EXPECT_EQ(window_start(5, 0), 0);
  struct Row {
    std::int64_t length, context, start;
  };
  for (const Row& row : {Row{1, 8, 0}, Row{8, 8, 0}, Row{9, 8, 4}, Row{12, 8, 4}, Row{13, 8, 8}, Row{9, 7, 3},
                         Row{2, 1, 1}, Row{3, 1, 2}, Row{100, 8, 92}}) {
    EXPECT_EQ(window_start(row.length, row.context), row.start) << row.length << " of " << row.context;
  }
}

class DecodingOnDevices : public OnDevice {
 protected:
  Decoder model(auto change) const {
    DecoderConfig config = various_decoders()[0].config;
    change(config);
    return make_decoder(config, device());
  }
  Decoder model() const {
    return model([](DecoderConfig&) {});
  }
};

TEST_P(DecodingOnDevices, BR054_EveryWayToCutAPromptGivesTheSameLogits) {
  Decoder decoder = model([](DecoderConfig& c) { c.context = 65, c.key_value_heads = 1; });
  Generator random(11);
  TokenRow prompt(64);
  for (std::int64_t& id : prompt) id = random.below(13);
  const NoGrad off;
  const NDArray ids = NDArray::from(prompt, {1, 64}, device());
  const NDArray full = decoder.forward({ids, {}, {}}).array();
  const int rounds = device() == cpu() ? 12 : 3;
  for (int round = 0; round < rounds; ++round) {
    Cache cache = decoder.empty_state(1, 64);
    std::int64_t past = 0;
    while (past < 64) {
      const std::int64_t size =
          std::min<std::int64_t>(64 - past, 1 + random.below(2 * round < rounds ? 9 : 40));
      const NDArray logits =
          decoder.forward({ids.slice(1, past, past + size), {}, {}}, {false, nullptr, &cache}).array();
      EXPECT_TRUE(agrees(logits, full.slice(1, past, past + size), bound_on(device(), 1e-12)));
      past += size;
    }
  }
}

TEST_P(DecodingOnDevices, S38_ACacheThatNoLongerHoldsIsRefused) {
  const NoGrad off;
  Decoder decoder = model(), other = model();
  Cache cache = decoder.empty_state(1, 8);
  const Pass pass{false, nullptr, &cache};
  const auto token = [&](std::int64_t id) { return NDArray::from(TokenRow{id}, {1, 1}, device()); };
  decoder.forward({NDArray::from(TokenRow{1, 4, 12}, {1, 3}, device()), {}, {}}, pass);
  EXPECT_TRUE(contains(error_of([&] {
                         other.forward({token(5), {}, {}}, pass);
                       }),
                       {"cache", "another model"}));
  // A text whose beginning was cropped goes on at other positions.
  const auto at = [&](std::int64_t position) {
    return SequenceInput{token(5), {}, NDArray::from(TokenRow{position}, {1, 1}, device())};
  };
  EXPECT_TRUE(
      contains(error_of([&] { decoder.forward(at(1), pass); }), {"position 1", "3 goes on", "dropped"}));
  decoder.forward(at(3), pass);
  Parameter weight = decoder.parameters()[0];
  weight.tensor.set_array(weight.tensor.array().copy());
  EXPECT_TRUE(contains(error_of([&] {
                         decoder.forward({token(5), {}, {}}, pass);
                       }),
                       {"cache", "weights have changed"}));
}

TEST_P(DecodingOnDevices, S38_WhatCannotGoOnIsRefused) {
  Decoder encoder = model([](DecoderConfig& c) { c.causal = false; });
  for (const bool cache : {true, false}) {
    EXPECT_TRUE(contains(error_of([&] { Decoding(encoder, {{1}}, {.cache = cache}, device()); }),
                         {"causal mask", "bidirectional"}));
  }
  Decoder decoder = model();
  EXPECT_TRUE(contains(error_of([&] { Decoding(decoder, {TokenRow(12, 1)}, {}, device()); }),
                       {"12 tokens", "context of 11", "recompute"}));
  Decoding full(decoder, {TokenRow(11, 1)}, {}, device());
  EXPECT_TRUE(full.is_full(0));
  EXPECT_TRUE(contains(error_of([&] { full.push(TokenRow{1}); }), {"row 0", "context of 11"}));
  EXPECT_TRUE(contains(error_of([&] { full.push(TokenRow{1, 2}); }), {"token", "2"}));
}

TEST_P(DecodingOnDevices, S36_CacheBytesFollowTheFormula) {
  DecoderConfig config = various_decoders()[0].config;  // width 12, 2 layers, 3 heads
  for (const std::int64_t key_heads : {1, 3}) {
    for (const DType storage : {DType::f32, DType::f16, DType::bf16}) {
      config.key_value_heads = key_heads;
      Decoder decoder = make_decoder(config, device(), DType::f32);
      const std::size_t live = device()->memory_stats().live;
      const Cache cache = decoder.empty_state(3, 9, storage);
      const std::size_t wanted = 2 * 3 * 2 * 9 * static_cast<std::size_t>(key_heads) * 4 * size_of(storage);
      EXPECT_EQ(cache.bytes(), wanted);
      EXPECT_EQ(device()->memory_stats().live - live, wanted);
    }
  }
}

TEST_P(DecodingOnDevices, S39_ATranslatorReadsItsSourceOnce) {
  ModelConfig config = DecoderConfig::of_size(13, 11, 12, 2, 3);
  config.kind = ModelKind::encoder_decoder;
  const auto model = make_named(config, device(), DType::f32);
  struct Counter final : Observer {
    int encoder = 0, cross_keys = 0;
    void after(const OpEvent& event) override {
      if (event.path.find("encoder.") == 0) ++encoder;
      if (event.path.find("cross.key") != std::string::npos) ++cross_keys;
    }
  } counter;
  const ObserverScope scope(&counter);
  Decoding batch(*model, {{1}, {1, 4}}, {.room = 6, .chunk = 1}, device(), {{3, 3, 9}, {5}});
  const int encoder = counter.encoder, keys = counter.cross_keys;
  EXPECT_GT(encoder, 0);
  EXPECT_GT(keys, 0);
  for (int step = 0; step < 4; ++step) batch.push(TokenRow{2, 5});
  EXPECT_EQ(counter.encoder, encoder);
  EXPECT_EQ(counter.cross_keys, keys);
  // Keys and values of itself, of both sources, and which of the sources' positions are real.
  EXPECT_EQ(batch.cache_bytes(), std::size_t{2 * 2 * 2 * 7 * 12 * 4 + 2 * 2 * 2 * 3 * 12 * 4 + 2 * 2 * 3});
}

TEST_P(DecodingOnDevices, S37_ADecodedTokenReadsItsPast) {
  Decoder decoder = model();
  OperationCounter counter;
  Decoding batch(decoder, {{1, 4, 12}}, {.room = 6}, device());
  {
    const ObserverScope scope(&counter);
    for (int step = 0; step < 5; ++step) batch.push(TokenRow{2});
  }
  // G P + G (G + 1) / 2 pairs, of 2 (key width + value width) operations, in each layer and head.
  EXPECT_EQ(counter.forward("attention"), (5 * 3 + 15) * 2.0 * (4 + 4) * 2 * 3);
}

TEST_P(DecodingOnDevices, ATokenAllocatesNothingNew) {
  Decoder decoder = model();
  Decoding batch(decoder, {{1, 4, 12}}, {.room = 8}, device());
  for (int step = 0; step < 3; ++step) batch.push(TokenRow{2});
  const MemoryStats before = device()->memory_stats();
  for (int step = 0; step < 4; ++step) batch.push(TokenRow{2});
  const MemoryStats after = device()->memory_stats();
  EXPECT_EQ(after.live, before.live);
  EXPECT_EQ(after.system_allocations, before.system_allocations);
}

INSTANTIATE_TEST_SUITE_P(All, DecodingOnDevices, testing::ValuesIn(all_devices()), device_name);

}  // namespace
}  // namespace needle
