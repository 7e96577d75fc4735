#include "needle/threads.h"

#include <omp.h>
#include <unistd.h>

#include <cstdlib>

#include "backends/error.h"

namespace needle {

void set_threads(int count) {
  constexpr int kMost = 1024;
  require(count >= 1 && count <= kMost, "threads: wants 1 to ", kMost, ", got ", count);
  omp_set_num_threads(count);
}

int threads() { return omp_get_max_threads(); }

namespace {
constexpr const char* kRestarted = "NEEDLE_RESTARTED";
}  // namespace

void forget_restart_settings() {
  if (!std::getenv(kRestarted)) return;
  for (const char* name : {"GOMP_SPINCOUNT", "OMP_PROC_BIND", kRestarted}) unsetenv(name);
}

void restart_with_short_spinning(char** arguments) {
  for (const char* name : {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_PROC_BIND"}) {
    if (std::getenv(name)) return;
  }
  setenv("GOMP_SPINCOUNT", "3000", 1);
  setenv("OMP_PROC_BIND", "true", 1);
  setenv(kRestarted, "1", 1);
  execv("/proc/self/exe", arguments);  // on failure the program simply goes on as it is
}

}  // namespace needle
