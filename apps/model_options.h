// The options that shape a model.
#pragma once

#include "apps/options.h"

namespace needle {

/// Adds them, in the group "Model"; their defaults are what `model` holds.
void add_model_options(CLI::App& command, ModelConfig& model);

}  // namespace needle
