// Ctrl-C as a question rather than an end.
#pragma once

#include <string_view>

namespace needle {

/// Makes the first Ctrl-C (or SIGTERM, SIGHUP) print `notice` and set interrupted(); a second one ends the
/// program at once. A reader that goes away is an error of the write from now on, not the end of the program.
/// Called before anything is computed, since threads that are there already would not know.
void stop_at_interrupt(std::string_view notice);
/// Whether it was asked to stop.
bool interrupted();

}  // namespace needle
