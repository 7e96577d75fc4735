// What models of tokens without attention promise: who reads whom, padding, and going on from a state.
#include <cmath>

#include <nlohmann/json.hpp>

#include "needle/models/model.h"
#include "needle/precision.h"
#include "tests/agree.h"
#include "tests/decoders.h"
#include "tests/token_models.h"

namespace needle {
namespace {

class TokenModels : public testing::TestWithParam<std::tuple<Device, NamedModel>> {
 protected:
  Device device() const { return std::get<0>(GetParam()); }
  const ModelConfig& config() const { return std::get<1>(GetParam()).config; }
  /// With weights large enough that every part shows in the logits.
  std::unique_ptr<SequenceModel> model() const {
    return make_named(config(), device(), exact_dtype(device()));
  }
  NDArray ids_of(const TokenRow& row) const { return NDArray::from(row, {1, std::ssize(row)}, device()); }
};

const std::vector<TokenRow> kRows{{1, 4, 12, 7, 3}, {1, 9}, {5}, {8, 2, 2, 6, 11, 10, 3, 3, 1}};

TEST_P(TokenModels, ParameterCountsFollowTheFormula) {
  EXPECT_EQ(model()->parameter_count(), config().parameter_count());
}

TEST_P(TokenModels, ConfigsSurviveJson) {
  const nlohmann::json json = config();
  EXPECT_EQ(nlohmann::json(json.get<ModelConfig>()), nlohmann::json(config().resolved()));
}

TEST_P(TokenModels, S06_LaterTokensLeaveTheLogitsBeforeThemBitIdentical) {
  const auto model = this->model();
  const NoGrad off;
  const NDArray before = model->forward({ids_of(kRows[3]), {}, {}}).array();
  for (std::size_t i = 1; i < kRows[3].size(); ++i) {
    TokenRow changed = kRows[3];
    for (std::size_t t = i; t < changed.size(); ++t) changed[t] = (changed[t] + 4) % 13;
    const NDArray after = model->forward({ids_of(changed), {}, {}}).array();
    const auto prefix = static_cast<std::int64_t>(i);
    EXPECT_TRUE(same(after.slice(1, 0, prefix), before.slice(1, 0, prefix)));
    EXPECT_FALSE(same(after.slice(1, prefix, prefix + 1), before.slice(1, prefix, prefix + 1)));
  }
}

TEST_P(TokenModels, S14_APaddedBatchEqualsItsRowsAlone) {
  const auto model = this->model();
  const NoGrad off;
  for (const PaddingSide side : {PaddingSide::left, PaddingSide::right}) {
    const NDArray logits = model->forward(padded(kRows, side, device(), 11)).array();
    for (std::size_t row = 0; row < kRows.size(); ++row) {
      const std::int64_t size = std::ssize(kRows[row]), from = side == PaddingSide::left ? 11 - size : 0;
      const NDArray alone = model->forward({ids_of(kRows[row]), {}, {}}).array()[0];
      EXPECT_TRUE(agrees(logits[static_cast<std::int64_t>(row)].slice(0, from, from + size), alone,
                         bound_on(device(), 1e-12)));
    }
  }
}

TEST_P(TokenModels, APassInChunksIsTheWholeOne) {
  const auto model = this->model();
  const NoGrad off;
  const SequenceInput input = padded({kRows[3], kRows[0]}, PaddingSide::left, device());
  const NDArray whole = model->forward(input).array();
  for (const std::int64_t chunk : {1, 2, 4, 9}) {
    Cache cache = model->empty_state(2, 9);
    for (std::int64_t start = 0; start < 9; start += chunk) {
      const std::int64_t end = std::min<std::int64_t>(9, start + chunk);
      const SequenceInput part{input.ids.slice(1, start, end), input.real.slice(1, start, end), {}};
      const NDArray logits = model->forward(part, {false, nullptr, &cache}).array();
      for (const std::int64_t row : {0, 1}) {  // of the second, what stands behind its padding
        const std::int64_t from = row == 0 ? start : std::clamp<std::int64_t>(4, start, end);
        EXPECT_TRUE(agrees(logits[row].slice(0, from - start, end - start), whole[row].slice(0, from, end),
                           bound_on(device(), 1e-12)));
      }
    }
    EXPECT_GT(cache.bytes() + (config().kernel == 1), 0u);
  }
}

TEST_P(TokenModels, EveryParameterReceivesAGradient) {
  const auto model = this->model();
  const SequenceInput input = padded({kRows[3], kRows[0]}, PaddingSide::right, device());
  for (const DType precision : {DType::f32, DType::bf16}) {
    const PrecisionScope scope(exact_dtype(device()) == DType::f32 ? precision : DType::f32,
                               precision != DType::f32);
    model->clear_gradients();
    const NDArray labels = NDArray::from(
        TokenRow{2, 2, 6, 11, 10, 3, 3, 1, 0, 4, 12, 7, 3, 1, -100, -100, -100, -100}, {2, 9}, device());
    Generator random(1);
    model->loss(input, labels, {}, {true, &random}).backward();
    for (const Parameter& parameter : model->parameters()) {
      ASSERT_TRUE(parameter.tensor.grad().defined()) << parameter.name;
      const double largest = reduce(Max{}, unary(Abs{}, parameter.tensor.grad())).item();
      EXPECT_GT(largest, 1e-12) << parameter.name;
      EXPECT_TRUE(std::isfinite(largest)) << parameter.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, TokenModels, testing::ValuesIn(on_all_devices(various_models())),
                         model_and_device);

// Truncated backpropagation through time: a state that is carried goes on, but no gradient goes back.
TEST(TokenModelsOnTheCpu, S28_ACarriedStateIsNumbersAlone) {
  ModelConfig config = DecoderConfig::of_size(13, 11, 10, 1, 1);
  config.kind = ModelKind::gru;
  Generator random(3);
  const auto model = make_model(config, random, cpu(), DType::f64);
  const NDArray first = NDArray::from(TokenRow{4, 5, 6}, {1, 3}),
                second = NDArray::from(TokenRow{7, 8}, {1, 2});
  Cache state = model->empty_state(1, 0);
  const Pass pass{true, &random, &state};
  model->loss({first, {}, {}}, first, {}, pass).backward();
  model->clear_gradients();
  const NDArray carried = state.kept(0)[0];
  model->loss({second, {}, {}}, second, {}, pass).backward();
  const NDArray slope = model->parameters()[0].tensor.grad();
  // The same second part from the same numbers given as a constant.
  Cache again = model->empty_state(1, 0);
  again.kept(0) = {carried};
  model->clear_gradients();
  model->loss({second, {}, {}}, second, {}, {true, &random, &again}).backward();
  EXPECT_TRUE(same(model->parameters()[0].tensor.grad(), slope));
}

TEST(TokenModelsOnTheCpu, AConvolutionWithAGateIsRefused) {
  ModelConfig config = DecoderConfig::of_size(13, 11, 10, 1, 1);
  config.kind = ModelKind::convolution;
  config.activation = Activation::gated;
  Generator random(3);
  EXPECT_TRUE(contains(error_of([&] { make_model(config, random); }), {"gated", "relu"}));
  config.activation = Activation::relu;
  config.dilations = {};
  EXPECT_TRUE(contains(error_of([&] { make_model(config, random); }), {"dilations"}));
}

}  // namespace
}  // namespace needle
