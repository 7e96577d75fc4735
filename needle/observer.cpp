#include "needle/observer.h"

namespace needle {

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
