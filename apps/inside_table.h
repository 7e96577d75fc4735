// A step's tape as a table in the terminal.
#pragma once

#include <string>

#include "needle/inspect/tape.h"

namespace needle {

/// The ops in order, grouped by module with sums, those of modules deeper than `depth` folded into theirs
/// (0: none), and only what is at the path `only` or below ("": all).
void print_tape(const Tape& tape, int depth, const std::string& only);

/// How long the phases of the step took, and what memory was in use for at its peak.
void print_times_and_memory(const Tape& tape);

}  // namespace needle
