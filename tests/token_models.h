// What tests of models of every kind share: a table of small ones without attention, with weights that show.
#pragma once

#include "needle/models/model.h"
#include "tests/decoders.h"

namespace needle {

struct NamedModel {
  std::string name;
  ModelConfig config;
};

template <class Change>
NamedModel changed_model(std::string name, ModelKind kind, Change&& change) {
  ModelConfig config = DecoderConfig::of_size(13, 11, 10, 2, 1);
  config.kind = kind;
  change(config);
  return {std::move(name), config};
}

inline std::vector<NamedModel> various_models() {
  using Config = ModelConfig;
  const auto nothing = [](Config&) {};
  return {changed_model("rnn", ModelKind::rnn, nothing),
          changed_model("rnn relu", ModelKind::rnn, [](Config& c) { c.activation = Activation::relu; }),
          changed_model("gru", ModelKind::gru, [](Config& c) { c.tied = false; }),
          changed_model("lstm", ModelKind::lstm, [](Config& c) { c.layers = 1, c.width = 7; }),
          changed_model("lstm without biases", ModelKind::lstm,
                        [](Config& c) { c.bias = c.tied = false, c.norm = NormKind::rms; }),
          changed_model("convolution", ModelKind::convolution, nothing),
          changed_model("convolution of one", ModelKind::convolution, [](Config& c) { c.kernel = 1; }),
          changed_model("dilated convolution", ModelKind::convolution, [](Config& c) {
            c.kernel = 2, c.layers = 3, c.dilations = {1, 3}, c.activation = Activation::relu;
          })};
}

/// Each of the models on each device.
inline std::vector<std::tuple<Device, NamedModel>> on_all_devices(const std::vector<NamedModel>& models) {
  std::vector<std::tuple<Device, NamedModel>> all;
  for (const Device device : all_devices()) {
    for (const NamedModel& model : models) all.emplace_back(device, model);
  }
  return all;
}

inline std::string model_and_device(const testing::TestParamInfo<std::tuple<Device, NamedModel>>& which) {
  return test_name(std::get<1>(which.param).name + " " + std::get<0>(which.param).name());
}

/// The model of a config, with weights large enough that every part shows in the logits.
inline std::unique_ptr<SequenceModel> make_named(const ModelConfig& config, Device device, DType dtype) {
  Generator random(3);
  std::unique_ptr<SequenceModel> model = make_model(config, random, device, dtype);
  const NoGrad off;
  enlarge_weights(*model, random);
  return model;
}

}  // namespace needle
