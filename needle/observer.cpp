#include "needle/observer.h"

namespace needle {

void rethrow_with_place(const DeviceError& error, const char* op, Phase phase, const std::string& path) {
  throw DeviceError(std::string(error.what()) + "; in the " +
                    (phase == Phase::forward ? "forward pass" : "gradient") + " of " + op +
                    (path.empty() ? "" : ", module " + path));
}

namespace {
const std::string kNoPath;
thread_local Observer* observer = nullptr;
thread_local const std::string* path = &kNoPath;
}  // namespace

Observer* current_observer() { return observer; }
ObserverScope::ObserverScope(Observer* next) : previous_(observer) { observer = next; }
ObserverScope::~ObserverScope() { observer = previous_; }

const std::string& current_path() { return *path; }
PathScope::PathScope(const std::string& next) : previous_(path) {
  if (!next.empty()) path = &next;
}
PathScope::~PathScope() { path = previous_; }

}  // namespace needle
