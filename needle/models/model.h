// Any sequence model by its config.
#pragma once

#include <memory>

#include "needle/models/sequence_model.h"

namespace needle {

/// The model that the config describes.
std::unique_ptr<SequenceModel> make_model(const ModelConfig& config, Generator& random, Device device = cpu(),
                                          DType dtype = DType::f32);

}  // namespace needle
