// A prompt line to play at.
#pragma once

#include "apps/generate_rows.h"

namespace needle {

/// Asks for prompts until the end of the input and writes each with its continuations. On a terminal lines
/// can be edited, and earlier ones, of earlier sessions too, come back with the arrow keys.
void write_interactively(SavedModel& saved, const RowsSettings& settings, Device device);

}  // namespace needle
