// An encoder-decoder with known weights: memory, logits, loss and gradients of tests/reference.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "needle/models/encoder_decoder.h"
#include "needle/ops/ops.h"
#include "tests/agree.h"
#include "tests/on_devices.h"
#include "tests/reference_file.h"

namespace needle {
namespace {

using NameParts = std::vector<std::pair<std::string, std::string>>;

/// What a parameter of ours is called in the file: one name, or those that are joined along the last axis.
std::vector<std::string> names_in_file(std::string name) {
  if (name.starts_with("decoder.blocks")) {  // norms are numbered in their order there
    for (const auto& [ours, theirs] : NameParts{{".norm2.", ".norm3."}, {".cross_norm.", ".norm2."}}) {
      if (const std::size_t at = name.find(ours); at != std::string::npos) {
        name.replace(at, ours.size(), theirs);
        break;
      }
    }
  }
  for (const auto& [ours, theirs] : NameParts{{"encoder.token_embedding", "source_embedding"},
                                              {"decoder.token_embedding", "target_embedding"},
                                              {"decoder.head", "head"},
                                              {".blocks.", "."},
                                              {".cross.", ".cross_attention."}}) {
    if (const std::size_t at = name.find(ours); at != std::string::npos)
      name.replace(at, ours.size(), theirs);
  }
  const std::string joined = ".qkv.";
  const std::size_t at = name.find(joined);
  if (at == std::string::npos) return {name};
  std::vector<std::string> names;
  for (const std::string part : {".query.", ".key.", ".value."})
    names.push_back(std::string(name).replace(at, joined.size(), part));
  return names;
}

NDArray joined(const ReferenceFile& file, const std::string& prefix, const std::string& name, DType dtype) {
  Tensors parts;
  for (const std::string& part : names_in_file(name)) parts.emplace_back(file.array(prefix + part, dtype));
  return concatenate(parts, -1).array();
}

class ReferenceEncoderDecoderTest : public testing::TestWithParam<std::tuple<Device, DType>> {
 protected:
  Device device() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
};

TEST_P(ReferenceEncoderDecoderTest, S20_S21_MemoryLogitsLossAndGradients) {
  const ReferenceFile file("encoder_decoder", device());
  const nlohmann::json known = file.metadata("case");
  ModelConfig config =
      DecoderConfig::of_size(known.at("vocab"), 16, known.at("width"), known.at("layers"), known.at("heads"));
  config.kind = ModelKind::encoder_decoder;
  config.ffn = known.at("ffn");
  config.tied = false;
  config.order = NormOrder::post;
  config.norm_epsilon = known.at("norm_eps");
  config.activation = Activation::relu;
  config.positions = Positions::sinusoidal;
  Generator unused(0);
  EncoderDecoder model(config, unused, device(), dtype());
  for (Parameter& parameter : model.parameters())
    parameter.tensor.set_array(joined(file, "", parameter.name, dtype()).copy());

  // The file's numbers are float32: even float64 is no closer than their rounding.
  const double bound = dtype() == DType::f64 ? 1e-6 : 1e-5;
  SequenceInput input{file.stored("inputs"), file.stored("inputs_real"), {}};
  input.source_ids = file.stored("source");
  input.source_real = file.stored("source_real");
  const NDArray real = input.source_real.unsqueeze(2), none = NDArray::scalar(0, dtype(), device());
  const auto at_real = [&](const NDArray& memory) { return select(real, memory, none); };
  EXPECT_TRUE(agrees(at_real(model.memory(input).array()), at_real(file.array("memory", dtype())), bound));
  const Tensor logits = model.forward(input);
  EXPECT_TRUE(agrees(logits.array(), file.stored("logits"), bound));
  const Tensor loss = model.loss(input, file.stored("labels"));
  EXPECT_TRUE(agrees(loss.array().reshape({1}), file.stored("loss"), bound));
  loss.backward();
  std::size_t gradients = 0;
  for (const Parameter& parameter : model.parameters()) {
    const NDArray right = joined(file, "grad.", parameter.name, dtype()), &ours = parameter.tensor.grad();
    gradients += names_in_file(parameter.name).size();
    if (parameter.name.ends_with("cross.key.bias")) {  // exactly 0, but for rounding
      EXPECT_LT(std::max(largest_magnitude(ours), largest_magnitude(right)), 1e-6) << parameter.name;
    } else {
      EXPECT_TRUE(agrees(ours, right, bound)) << parameter.name;
    }
  }
  EXPECT_EQ(gradients, std::count_if(file.names().begin(), file.names().end(),
                                     [](const std::string& name) { return name.starts_with("grad."); }));
}

std::string type_and_device(const testing::TestParamInfo<std::tuple<Device, DType>>& place) {
  const auto& [device, dtype] = place.param;
  return test_name(std::string(name_of(dtype)) + " " + device.name());
}

INSTANTIATE_TEST_SUITE_P(All, ReferenceEncoderDecoderTest, testing::ValuesIn(devices_and_dtypes()),
                         type_and_device);

}  // namespace
}  // namespace needle
