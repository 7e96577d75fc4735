// The patch classifier: images as sequences.
#include "needle/models/patches.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "needle/counters.h"
#include "needle/models/model.h"
#include "needle/ops/ops.h"
#include "needle/optim/optimizer.h"
#include "needle/precision.h"
#include "tests/agree.h"
#include "tests/decoders.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

class PatchesTest : public OnDevice {
 protected:
  static ModelConfig config_of(std::int64_t classes, std::int64_t context, std::int64_t features) {
    ModelConfig config = DecoderConfig::of_size(classes, context, 12, 2, 3);
    config.kind = ModelKind::patches;
    config.features = features;
    return config;
  }
  std::unique_ptr<SequenceModel> make(DType dtype) const {
    Generator random(3);
    auto model = make_model(config_of(4, 7, 5), random, device(), dtype);
    enlarge_weights(*model, random);
    return model;
  }
  std::unique_ptr<SequenceModel> make() const { return make(exact()); }
  static SequenceInput input_of(const NDArray& features, const NDArray& real = {}) {
    SequenceInput input;
    input.features = features;
    input.real = real;
    return input;
  }
};

TEST_P(PatchesTest, S27_PatchesMakeAnImageAShortSequence) {
  // 256 x 256 numbers, alone or in patches of 16 x 16.
  const std::int64_t side = 256, patch = 16, pixels = side * side, patches = pixels / (patch * patch);
  EXPECT_EQ(patches, 256);
  EXPECT_EQ(attention_pairs({}, {1, 1, patches, patches}), 65536);
  EXPECT_EQ(attention_pairs({}, {1, 1, pixels, pixels}), 4294967296);
  // A model of them reads the class token too.
  ModelConfig config = config_of(10, 1 + patches, patch * patch);
  config.layers = 1;
  Generator random(1);
  Patches model(config, random, device());
  OperationCounter counter;
  const ObserverScope watch(&counter);
  const NoGrad off;
  const Tensor logits =
      model.forward(input_of(NDArray::zeros({1, 1 + patches, patch * patch}, DType::f32, device())));
  EXPECT_EQ(logits.shape(), (Shape{1, 257, 10}));
  EXPECT_EQ(counter.forward("attention"), 2 * (12 + 12) * 257 * 257);
}

TEST_P(PatchesTest, NamesAndCountsOfItsParameters) {
  const auto model = make();
  std::vector<std::string> names;
  for (const Parameter& parameter : model->parameters()) names.push_back(parameter.name);
  EXPECT_EQ((std::vector(names.begin(), names.begin() + 5)),
            (std::vector<std::string>{"patch_map.weight", "patch_map.bias", "class_embedding.weight",
                                      "position_embedding.weight", "blocks.0.norm1.weight"}));
  EXPECT_EQ(names.back(), "head.bias");
  const ModelConfig& config = model->config();
  const std::int64_t blocks = 2 * config.BlockConfig::parameter_count();
  EXPECT_EQ(model->parameter_count(), 5 * 12 + 12 + 12 + 7 * 12 + blocks + 2 * 12 + 12 * 4 + 4);
  const nlohmann::json json = config;
  EXPECT_EQ(nlohmann::json(json.get<ModelConfig>()), json);
}

TEST_P(PatchesTest, TheClassTokenReadsAllPatchesAndReplacesWhatStandsInItsPlace) {
  const auto model = make();
  const NoGrad off;
  const NDArray features = normal({2, 6, 5}, 1);
  const NDArray before = model->forward(input_of(features)).array();
  for (std::int64_t place = 0; place < 6; ++place) {
    const NDArray changed = features.copy();
    changed.slice(1, place, place + 1).slice(0, 0, 1).assign(normal({1, 1, 5}, 2));
    const NDArray after = model->forward(input_of(changed)).array();
    EXPECT_EQ(bool(same(after[0][0], before[0][0])), place == 0) << place;
    EXPECT_TRUE(same(after[1], before[1]));
  }
}

TEST_P(PatchesTest, S18_AnImageOfFewerPatchesIsTheSameAloneOrPadded) {
  const auto model = make();
  const NoGrad off;
  const NDArray features = normal({2, 6, 5}, 1), real = mask({1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1}, {2, 6});
  const NDArray logits = model->forward(input_of(features, real)).array();
  for (const std::int64_t row : {0, 1}) {
    const std::int64_t length = row == 0 ? 4 : 6;
    const NDArray alone = features.slice(0, row, row + 1).slice(1, 0, length);
    EXPECT_TRUE(agrees(logits[row].slice(0, 0, length), model->forward(input_of(alone)).array()[0]));
  }
}

TEST_P(PatchesTest, ImpossibleInputsAreErrorsThatSayWhy) {
  const auto model = make();
  const auto error = [&](const Shape& shape) {
    return error_of([&] { model->forward(input_of(normal(shape, 1))); });
  };
  EXPECT_TRUE(contains(error({1, 3, 4}), {"features [batch, time, 5]"}));
  EXPECT_TRUE(contains(error({1, 0, 5}), {"features [batch, time, 5]"}));
  EXPECT_TRUE(contains(error({1, 8, 5}), {"position 7", "context of 7"}));
  EXPECT_TRUE(contains(error_of([&] { model->forward({}); }), {"features"}));
  EXPECT_TRUE(contains(error_of([&] { model->empty_state(1, 3); }), {"bidirectional"}));
  EXPECT_TRUE(contains(error_of([] { config_of(4, 7, 0).resolved(); }), {"features", "0"}));
}

/// Images of 8 x 8 in patches of 4 x 4: noise, and one bright quadrant, which is the class.
struct Images {
  NDArray features, labels;
};

Images images(std::int64_t count, Generator& random, Device device) {
  std::vector<float> features;
  std::vector<std::int64_t> labels;
  for (std::int64_t image = 0; image < count; ++image) {
    const std::int64_t bright = random.below(4);
    features.insert(features.end(), 16, 0.0F);
    labels.insert(labels.end(), {bright, -100, -100, -100, -100});
    for (std::int64_t patch = 0; patch < 4; ++patch) {
      for (int pixel = 0; pixel < 16; ++pixel)
        features.push_back(static_cast<float>(random.uniform() + (patch == bright ? 0.4 : 0)));
    }
  }
  return {NDArray::from(features, {count, 5, 16}, device), NDArray::from(labels, {count, 5}, device)};
}

TEST_P(PatchesTest, S27_ASmallClassifierTrains) {
  Generator random(1);
  ModelConfig config = config_of(4, 5, 16);
  config.initialisation = Initialisation::uniform;  // the other is too small for so narrow a model
  const auto model = make_model(config, random, device());
  Adam optimizer(groups_by_rank(model->parameters(), 0), AdamDecay::decoupled);
  for (int step = 0; step < many(100); ++step) {
    const Images batch = images(32, random, device());
    model->loss(input_of(batch.features), batch.labels).backward();
    EXPECT_TRUE(gradients_are_finite(*model));
    optimizer.step(5e-3);
    optimizer.clear_gradients();
  }
  if (device() != cpu()) return;
  const NoGrad off;
  const Images unseen = images(200, random, device());
  const NDArray logits = model->forward(input_of(unseen.features)).array().slice(1, 0, 1).squeeze(1);
  const NDArray right = binary(Equal{}, argmax(logits), unseen.labels.slice(1, 0, 1).squeeze(1));
  EXPECT_GT(reduce(Sum{}, right.cast(DType::f32)).item(), 190);
}

TEST_P(PatchesTest, SixteenBitProductsGiveFiniteGradients) {
  for (const bool half_residual : {false, true}) {
    const PrecisionScope scope(DType::bf16, half_residual);
    const auto model = make(DType::f32);
    model->loss(input_of(normal({2, 6, 5}, 1, DType::f32)), ids({1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 0, 1}, {2, 6}))
        .backward();
    EXPECT_TRUE(gradients_are_finite(*model));
  }
}

INSTANTIATE_TEST_SUITE_P(All, PatchesTest, testing::ValuesIn(all_devices()), device_name);

}  // namespace
}  // namespace needle
