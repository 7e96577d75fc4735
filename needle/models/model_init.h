// How models begin.
#pragma once

#include "needle/models/model_config.h"

namespace needle {

/// What the modules of such a model are made with; the scheme is the config's.
Init init_of(const ModelConfig& config, Generator& random, Device device, DType dtype);

/// The config resolved. Throws where the matrices alone do not fit into the device's memory.
ModelConfig fitting(const ModelConfig& config, Device device, DType dtype);

}  // namespace needle
