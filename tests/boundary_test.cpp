// Who reads whom: every kind of model, models that break the boundary, and what is drawn of it.
#include "needle/inspect/boundary.h"

#include <gtest/gtest.h>

#include <functional>

#include "needle/models/model.h"
#include "needle/models/names_of_choices.h"
#include "needle/nn/convolution.h"
#include "needle/nn/recurrent.h"
#include "tests/decoders.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

using Places = std::vector<std::int64_t>;
constexpr std::int64_t kWidth = 6;

/// A model of nothing but a function from embedded positions to states.
class FunctionModel : public SequenceModel {
 public:
  using Function = std::function<Tensor(const Tensor& embedded, const SequenceInput& input)>;
  explicit FunctionModel(Function function) : function_(std::move(function)) { config_.vocabulary = 9; }

  const ModelConfig& config() const override { return config_; }
  Tensor embed(const SequenceInput& input, const Pass&) override { return Tensor(input.features); }
  Tensor states(const Tensor& embedded, const SequenceInput& input, const Pass&) override {
    return function_(embedded, input);
  }
  Tensor head(const Tensor& states) override { return states; }
  Cache empty_state(std::int64_t, std::int64_t, std::optional<DType>) override { fail("no cache"); }
  std::int64_t context() const override { return 0; }
  void list(Parts&) override {}

 private:
  Function function_;
  ModelConfig config_;
};

class BoundaryTest : public OnDevice {
 protected:
  Boundary measure(const FunctionModel::Function& function, std::int64_t length) const {
    FunctionModel model(function);
    Generator random(2);
    SequenceInput input{};
    input.features = normal({1, length, kWidth}, 5);
    return measure_boundary(model, input, random);
  }
  Boundary measure(SequenceModel& model, std::int64_t length) const {
    Generator random(2);
    return measure_boundary(model, random_input(model.config(), length, random, device()), random);
  }
  /// Convolutions one after the other, one for each dilation.
  FunctionModel::Function convolutions(std::int64_t kernel, const Places& dilations) const {
    Generator random(1);
    auto layers = std::make_shared<std::vector<CausalConvolution>>();
    for (const std::int64_t dilation : dilations)
      layers->emplace_back(kWidth, kWidth, kernel, dilation, true, init(random));
    return [layers](const Tensor& x, const SequenceInput&) {
      Tensor y = x;
      for (const CausalConvolution& layer : *layers) y = layer.forward(y, Epilogue::gelu);
      return y;
    };
  }
  FunctionModel::Function recurrence(RecurrentCell cell) const {
    Generator random(1);
    auto layer = std::make_shared<RecurrentLayer>(cell, kWidth, kWidth, true, init(random));
    return [layer](const Tensor& x, const SequenceInput&) {
      return layer->forward(x, layer->empty_state(x.size(0))).states;
    };
  }
  Init init(Generator& random) const { return {random, device(), exact(), Initialisation::uniform}; }
};
INSTANTIATE_TEST_SUITE_P(All, BoundaryTest, testing::ValuesIn(all_devices()), device_name);

TEST_P(BoundaryTest, S06_EveryDecoderReadsThePastAndNeverTheFuture) {
  std::vector<NamedDecoder> decoders = various_decoders();
  if (device() != cpu()) decoders.resize(8);  // where it takes long
  for (const auto& [name, config] : decoders) {
    SCOPED_TRACE(name);
    Decoder model = make_decoder(config, device());
    const Boundary boundary = measure(model, 6);
    EXPECT_TRUE(boundary.causal());
    EXPECT_FALSE(boundary.blind());
    const std::int64_t field = model.config().receptive_field();
    EXPECT_EQ(boundary.span(), field == 0 ? 6 : std::min<std::int64_t>(field, 6));
    EXPECT_EQ(boundary.holes(), Places{});
    EXPECT_EQ(boundary.first_change, (Places{0, 1, 2, 3, 4, 5}));
  }
}

TEST_P(BoundaryTest, S06_S08_AnEncoderFailsAndThePairIsNamed) {
  ModelConfig config = various_decoders()[0].config;
  config.causal = false;
  Decoder model = make_decoder(config, device());
  const Boundary boundary = measure(model, 4);
  EXPECT_EQ(boundary.offence(), (ReadingPair{0, 1}));
  EXPECT_EQ(boundary.first_change, (Places{0, 0, 0, 0}));
  const HeatMap picture = boundary_picture(boundary, "encoder");
  EXPECT_EQ(picture.kinds.back(), "reads the future");
  EXPECT_EQ(heat_map_text(picture),
            "output \\ input  1 2 3 4\n"
            "             1  ██××××××\n"
            "             2  ████××××\n"
            "             3  ██████××\n"
            "             4  ████████\n"
            "                · does not read  █ reads  × reads the future\n");
}

TEST_P(BoundaryTest, S06_RecurrenceAndConvolutionAreCausal) {
  for (const RecurrentCell cell :
       {RecurrentCell::tanh, RecurrentCell::relu, RecurrentCell::gru, RecurrentCell::lstm}) {
    const Boundary boundary = measure(recurrence(cell), 6);
    EXPECT_TRUE(boundary.causal());
    EXPECT_EQ(boundary.span(), 6);
  }
  EXPECT_TRUE(measure(convolutions(3, {1, 2}), 9).causal());
}

TEST_P(BoundaryTest, S06_S29_EveryBuiltInFamilyIsCausalAndReachesAsFarAsItsFormulaSays) {
  for (const ModelKind kind : {ModelKind::decoder, ModelKind::rnn, ModelKind::gru, ModelKind::lstm}) {
    ModelConfig config = DecoderConfig::of_size(13, 8, 12, 2, 3);
    config.kind = kind;
    Generator random(1);
    const std::unique_ptr<SequenceModel> model = make_model(config, random, device());
    EXPECT_TRUE(claims_causality(model->config()));
    const Boundary boundary = measure(*model, 8);
    EXPECT_TRUE(boundary.causal()) << name_of_choice(kind);
    EXPECT_EQ(boundary.span(), 8) << name_of_choice(kind);
    EXPECT_EQ(model->config().receptive_field(), 0);
  }
  for (const auto& [dilations, holes] :
       std::vector<std::pair<Places, Places>>{{{1, 2, 4}, {}}, {{1, 1, 1}, {}}, {{4, 4, 1}, {2, 3, 6, 7}}}) {
    ModelConfig config = DecoderConfig::of_size(13, 16, 12, 3, 1);
    config.kind = ModelKind::convolution;
    config.kernel = 2;
    config.dilations = dilations;
    Generator random(1);
    const std::unique_ptr<SequenceModel> model = make_model(config, random, device());
    EXPECT_TRUE(claims_causality(model->config()));
    const Boundary boundary = measure(*model, 12);
    EXPECT_TRUE(boundary.causal());
    EXPECT_EQ(boundary.span(), model->config().receptive_field());
    EXPECT_EQ(boundary.holes(), holes);
  }
}

TEST_P(BoundaryTest, S06_AnEncoderDecoderIsCausalInWhatItWritesAndClassifiersReadAll) {
  ModelConfig config = DecoderConfig::of_size(13, 8, 12, 2, 3);
  for (const auto& [kind, causal] : {std::pair(ModelKind::encoder_decoder, true),
                                     {ModelKind::encoder, false},
                                     {ModelKind::patches, false}}) {
    config.kind = kind;
    config.features = kind == ModelKind::patches ? 5 : 0;
    Generator random(1);
    const std::unique_ptr<SequenceModel> model = make_model(config, random, device());
    const Boundary boundary = measure(*model, 5);
    EXPECT_EQ(boundary.causal(), causal) << name_of_choice(kind);
    EXPECT_EQ(claims_causality(model->config()), causal) << name_of_choice(kind);
    EXPECT_EQ(boundary.offence(), causal ? std::nullopt : std::optional(ReadingPair{0, 1}));
    EXPECT_EQ(boundary.span(), 5) << name_of_choice(kind);
  }
}

TEST_P(BoundaryTest, S06_ALookAheadIsFoundWhereItIs) {
  // Output 2 alone reads input 4.
  const Boundary boundary = measure(
      [this](const Tensor& x, const SequenceInput&) {
        std::vector<double> pair(36);
        for (std::size_t i = 0; i < 6; ++i) pair[7 * i] = 1;
        pair[2 * 6 + 4] = 1;
        return matmul(Tensor(array(pair, {6, 6})), x);
      },
      6);
  EXPECT_EQ(boundary.offence(), (ReadingPair{2, 4}));
  EXPECT_EQ(boundary.first_change, (Places{0, 1, 2, 2, 2, 5}));
  EXPECT_EQ(boundary.distances(), Places{0});
}

TEST_P(BoundaryTest, S06_WhatGradientsDoNotShowAChangeDoes) {
  // Past the embedded positions, each output reads the next input.
  const Boundary boundary = measure(
      [](const Tensor& x, const SequenceInput& input) {
        const NDArray& all = input.features;
        const NDArray next = all.slice(1, 1, all.size(1));
        return x + pad(Tensor(next), {{0, 0}, {0, 1}, {0, 0}});
      },
      4);
  EXPECT_EQ(boundary.offence(), (ReadingPair{0, 1}));
  EXPECT_FALSE(boundary.reads(0, 1));
  EXPECT_EQ(boundary_picture(boundary, "").values[1], 2);
}

TEST_P(BoundaryTest, S06_AnOutputThatReadsNothingIsTold) {
  const Boundary boundary = measure([](const Tensor& x, const SequenceInput&) { return x * 0.0; }, 3);
  EXPECT_EQ(boundary.blind(), 0);
  EXPECT_EQ(boundary.span(), 0);
  EXPECT_TRUE(boundary.causal());
}

TEST_P(BoundaryTest, S29_SpanAndHolesAreThoseOfTheSchedule) {
  struct Case {
    std::int64_t kernel;
    Places dilations;
    std::int64_t length;
    Places distances;
  };
  const std::vector<Case> cases{{2, {1, 1, 1}, 8, {0, 1, 2, 3}},  // position 8 of 8 reads 5 ... 8
                                {2, {1, 2, 4}, 10, {0, 1, 2, 3, 4, 5, 6, 7}},
                                {2, {4, 4}, 12, {0, 4, 8}},
                                {3, {3}, 9, {0, 3, 6}},
                                {1, {1, 1}, 4, {0}},
                                {2, {4, 4}, 7, {0, 4}}};  // the second hop lies before the start
  for (const auto& [kernel, dilations, length, distances] : cases) {
    const Boundary boundary = measure(convolutions(kernel, dilations), length);
    EXPECT_EQ(boundary.distances(), distances);
    EXPECT_EQ(boundary.span(), distances.back() + 1);
    EXPECT_EQ(boundary.span() - std::ssize(boundary.holes()), std::ssize(distances));
    ModelConfig config;
    config.kind = ModelKind::convolution;
    config.kernel = kernel;
    config.dilations = dilations;
    config.layers = std::ssize(dilations);
    if (length > config.receptive_field()) {
      EXPECT_EQ(boundary.span(), config.receptive_field());
    }
  }
  EXPECT_EQ(measure(convolutions(2, {4, 4}), 12).holes(), (Places{1, 2, 3, 5, 6, 7}));
}

TEST_P(BoundaryTest, S30_HowTheFirstOfEightPositionsReachesTheLast) {
  EXPECT_TRUE(measure(recurrence(RecurrentCell::tanh), 8).reads(7, 0));
  EXPECT_FALSE(measure(convolutions(2, {1, 1, 1}), 8).reads(7, 0));
  ModelConfig config = various_decoders()[0].config;
  config.layers = 1;
  Decoder model = make_decoder(config, device());
  EXPECT_TRUE(measure(model, 8).reads(7, 0));
}

TEST_P(BoundaryTest, WrongInputIsAnError) {
  Decoder model = make_decoder(various_decoders()[0].config, device());
  Generator random(1);
  EXPECT_TRUE(contains(error_of([&] { measure_boundary(model, {}, random); }), {"boundary", "one row"}));
  EXPECT_TRUE(contains(error_of([&] {
                         measure_boundary(model, {ids({1, 2, 3, 4}, {2, 2}), {}, {}}, random);
                       }),
                       {"boundary", "one row"}));
  EXPECT_TRUE(contains(
      error_of([&] { measure([](const Tensor& x, const SequenceInput&) { return slice(x, 1, 0, 1); }, 3); }),
      {"boundary", "as many states"}));
}

}  // namespace
}  // namespace needle
