// How many threads the kernels use. Everything runs on OpenMP's one pool.
#pragma once

namespace needle {

/// Sets the number of threads of all kernels; 1 to 1024, else an Error.
void set_threads(int count);
/// The number in use.
int threads();
/// Makes idle threads sleep soon, which keeps a shared machine fast: libgomp reads its settings before main,
/// so the program sets them and starts itself anew, once. Does nothing when the user has chosen settings.
void restart_with_short_spinning(char** arguments);
/// Takes those settings out of the environment again, for programs that this one starts.
void forget_restart_settings();

}  // namespace needle
