// The losses of a run as a picture.
#pragma once

#include <optional>

#include "needle/train/run_folder.h"

namespace needle {

/// Draws losses.svg into the run's folder: training and validation loss over the steps, and the floor where
/// it is known. Returns its path.
std::filesystem::path draw_loss_curve(const RunFolder& run, std::optional<double> floor);

}  // namespace needle
