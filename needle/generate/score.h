// What a model gives to text that is there already.
#pragma once

#include "needle/generate/decoding.h"

namespace needle {

/// log P of each token but the first, given those before it, in float64: of each row one less than it has
/// tokens. Past the context, each token is read in the window that generation would use (window_start). An
/// Error for models that read both ways.
std::vector<std::vector<double>> score(SequenceModel& model, const std::vector<TokenRow>& rows,
                                       Device device = cpu());

}  // namespace needle
