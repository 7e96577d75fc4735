// Decoders with known weights: logits, loss, gradients, training, padding and generation of tests/reference.
#include <gtest/gtest.h>

#include "needle/generate/generator.h"
#include "needle/ops/ops.h"
#include "needle/train/trainer.h"
#include "tests/agree.h"
#include "tests/on_devices.h"
#include "tests/reference_file.h"

namespace needle {
namespace {

/// The files hold float32 numbers, so even our float64 can be no closer than their rounding.
double reference_bound(DType dtype) { return dtype == DType::f64 ? 1e-6 : 1e-5; }

DecoderConfig config_of(const ReferenceFile& file) {
  const nlohmann::json known = file.metadata("case");
  DecoderConfig config;
  config.vocabulary = known.at("vocab");
  config.context = known.value("context", 16);
  config.width = known.at("width");
  config.layers = known.at("layers");
  config.heads = known.at("heads");
  config.key_value_heads = known.value("key_value_heads", 0);
  config.ffn = known.at("ffn");
  config.tied = known.at("tied");
  config.bias = known.value("biases", true);
  config.norm_epsilon = known.at("norm_eps");
  config.norm = known.value("norm", "layer") == "rms" ? NormKind::rms : NormKind::layer;
  if (known.contains("positions")) config.positions = Positions::rotary;
  config.activation = known.contains("activation") ? Activation::gated
                      : known.at("gelu") == "tanh" ? Activation::gelu_tanh
                                                   : Activation::gelu;
  return config;
}

Decoder decoder_of(const ReferenceFile& file, const DecoderConfig& config, Device device, DType dtype) {
  Generator unused(0);
  Decoder model(config, unused, device, dtype);
  for (Parameter& parameter : model.parameters())
    parameter.tensor.set_array(file.array(parameter.name, dtype));
  return model;
}

class ReferenceDecoderTest
    : public testing::TestWithParam<std::tuple<std::tuple<Device, DType>, std::string>> {
 protected:
  Device device() const { return std::get<0>(std::get<0>(GetParam())); }
  DType dtype() const { return std::get<1>(std::get<0>(GetParam())); }
  ReferenceFile file() const { return ReferenceFile(std::get<1>(GetParam()), device()); }
  double bound() const { return reference_bound(dtype()); }
};

TEST_P(ReferenceDecoderTest, S42_S46_LogitsLossAndGradients) {
  const ReferenceFile known = file();
  Decoder model = decoder_of(known, config_of(known), device(), dtype());
  const Tensor logits = model.forward({known.stored("inputs"), known.stored("real"), {}});
  EXPECT_TRUE(agrees(logits.array(), known.stored("logits"), bound()));
  const Tensor loss = cross_entropy(logits, known.stored("labels"));
  EXPECT_TRUE(agrees(loss.array().reshape({1}), known.stored("loss"), bound()));
  loss.backward();
  std::size_t gradients = 0;
  for (const Parameter& parameter : model.parameters()) {
    EXPECT_TRUE(agrees(parameter.tensor.grad(), known.stored("grad." + parameter.name), bound()))
        << parameter.name;
    ++gradients;
  }
  EXPECT_EQ(gradients, std::count_if(known.names().begin(), known.names().end(),
                                     [](const std::string& name) { return name.starts_with("grad."); }));
}

TEST_P(ReferenceDecoderTest, S43_AWindowOfThree) {
  const ReferenceFile known = file();
  if (!known.contains("logits_window_3")) return;
  DecoderConfig config = config_of(known);
  config.window = 3;
  Decoder model = decoder_of(known, config, device(), dtype());
  const Tensor logits = model.forward({known.stored("inputs"), known.stored("real"), {}});
  EXPECT_TRUE(agrees(logits.array(), known.stored("logits_window_3"), bound()));
}

/// `array` without the key part of an attention bias: its gradient is rounding noise (S42).
NDArray without_key_bias(const std::string& name, const NDArray& array) {
  if (!name.ends_with("qkv.bias")) return array;
  const NDArray parts = array.reshape({3, -1});
  return parts.slice(0, 0, 3, 2);
}

TEST_P(ReferenceDecoderTest, S42_TenStepsOfAdamW) {
  const ReferenceFile known = file();
  if (!known.contains("train.losses")) return;
  const bool exact = dtype() == DType::f64;
  Decoder model = decoder_of(known, config_of(known), device(), dtype());
  const nlohmann::json settings = known.metadata("case").at("adamw");
  const std::vector<Parameter> parameters = model.parameters();
  Adam optimizer(groups_by_rank(parameters, 0.1), AdamDecay::decoupled, settings.at("betas")[0],
                 settings.at("betas")[1], settings.at("eps"));
  std::vector<double> losses, norms;
  for (int step = 0; step < settings.at("steps").get<int>(); ++step) {
    const Tensor loss = cross_entropy(model.forward({known.stored("inputs"), known.stored("real"), {}}),
                                      known.stored("labels"));
    losses.push_back(loss.item());
    loss.backward();
    const GradientNorm norm = gradient_norm(parameters, settings.at("clip_norm"));
    norms.push_back(norm.norm);
    optimizer.step(settings.at("lr"), norm.scale);
    optimizer.clear_gradients();
  }
  EXPECT_TRUE(agrees(NDArray::from(losses, {10}, device()), known.stored("train.losses"), bound()));
  EXPECT_TRUE(agrees(NDArray::from(norms, {10}, device()), known.stored("train.grad_norms"), bound()));
  for (const Parameter& parameter : parameters) {
    const NDArray right = known.stored("train.after." + parameter.name), &ours = parameter.tensor.array();
    EXPECT_TRUE(
        exact ? agrees(ours, right, 1e-6)
              : agrees(without_key_bias(parameter.name, ours), without_key_bias(parameter.name, right), 1e-4))
        << parameter.name;
  }
}

TEST_P(ReferenceDecoderTest, S42_LeftPaddedLogits) {
  const ReferenceFile known = file();
  if (!known.contains("left.inputs")) return;
  Decoder model = decoder_of(known, config_of(known), device(), dtype());
  const NDArray real = known.stored("left.real");
  EXPECT_TRUE(same(position_ids(real), known.stored("left.positions")));
  const NDArray logits = model.forward({known.stored("left.inputs"), real, {}}).array();
  const NDArray last = logits.slice(1, logits.size(1) - 1, logits.size(1)).squeeze(1);
  EXPECT_TRUE(agrees(last, known.stored("left.last_logits"), bound()));
}

TEST_P(ReferenceDecoderTest, S42_GreedyContinuation) {
  const ReferenceFile known = file();
  Decoder model = decoder_of(known, config_of(known), device(), dtype());
  const std::vector<std::int64_t> all = known.stored("greedy").to_vector<std::int64_t>();
  const std::vector<std::int64_t> prompt(all.begin(), all.begin() + 4), right(all.begin() + 4, all.end());
  GenerateSettings greedy;
  greedy.new_tokens = std::min<std::int64_t>(std::ssize(right), model.context() - 5);
  greedy.sampler.temperature = 0;
  // In company, so that its own row is padded.
  const std::vector<TokenRow> prompts{prompt, {3, 1, 4, 1, 5, 9}, prompt};
  const std::vector<Answer> answers = generate(model, prompts, greedy, Generator(1), device());
  EXPECT_EQ(answers[0].ids, right);
  EXPECT_EQ(answers[2].ids, right);
}

std::string row_name(const testing::TestParamInfo<ReferenceDecoderTest::ParamType>& info) {
  const auto& [place, file] = info.param;
  return test_name(file + " " + std::string(name_of(std::get<1>(place))) + " " + std::get<0>(place).name());
}

INSTANTIATE_TEST_SUITE_P(All, ReferenceDecoderTest,
                         testing::Combine(testing::ValuesIn(devices_and_dtypes()),
                                          testing::Values("decoder", "decoder_tied_tanh", "decoder_gated")),
                         row_name);

class ReferenceTest : public OnDevice {};

TEST_P(ReferenceTest, S23_SinusoidalPositions) {
  const NDArray right = ReferenceFile("sinusoidal_positions", device()).stored("table");
  EXPECT_TRUE(agrees(sinusoidal_table(50, 16, exact(), device()), right, 1e-6));
  EXPECT_TRUE(agrees(sinusoidal_table(50, 16, DType::f32, device()), right));
}

TEST_P(ReferenceTest, OptimizerTrajectories) {
  const ReferenceFile known("optimizers", device());
  const nlohmann::json settings = known.metadata("case");
  for (const DType dtype : dtypes()) {
    for (const std::string name : {"sgd", "sgd_momentum_decay", "sgd_nesterov", "adam", "adamw"}) {
      const nlohmann::json& how = settings.at(name);
      const Tensor weight(known.array("w0", dtype), true);
      const std::vector<ParameterGroup> groups{
          {{{"weight", weight, true, {}}}, how.value("weight_decay", 0.0)}};
      std::unique_ptr<Optimizer> optimizer;
      if (name.starts_with("sgd")) {
        optimizer = std::make_unique<Sgd>(groups, how.value("momentum", 0.0), how.value("nesterov", false));
      } else {
        optimizer = std::make_unique<Adam>(groups, name == "adam" ? AdamDecay::coupled : AdamDecay::decoupled,
                                           how.at("betas")[0], how.at("betas")[1], how.at("eps"));
      }
      const NDArray gradients = known.array("grads", dtype), right = known.stored("trajectory." + name);
      for (std::int64_t step = 0; step < gradients.size(0); ++step) {
        Tensor(weight).mutable_grad() = gradients[step].copy();
        optimizer->step(how.at("lr"));
        EXPECT_TRUE(agrees(weight.array(), right[step], reference_bound(dtype))) << name << ", step " << step;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ReferenceTest, testing::ValuesIn(all_devices()), device_name);

}  // namespace
}  // namespace needle
