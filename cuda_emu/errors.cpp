// Recording, printing and describing violations.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdlib>
#include <map>
#include <utility>

#include "cuda_emu/internal.h"

namespace needle::cuda::emu {
namespace {

std::vector<Report> reports;
std::size_t first_new = 0;

// Runs addr2line on the module that contains pc.  Slow (a process), so only for reports.
// function: "kernel(float const*, int)"; otherwise "device.h:53, inlined at norm.cu:18".
std::string symbolize(const void* pc, bool function) {
  static std::map<std::pair<const void*, bool>, std::string> cache;
  auto [it, is_new] = cache.try_emplace({pc, function});
  if (!is_new) return it->second;
  std::string& text = it->second;
  text = format("%p", pc);
  Dl_info info;
  if (dladdr(pc, &info) == 0 || info.dli_fname == nullptr) return text;
  const auto offset = static_cast<const char*>(pc) - static_cast<const char*>(info.dli_fbase);
  char exe[4096];
  const ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
  exe[n > 0 ? n : 0] = 0;
  // For the main program dli_fname may be relative to a directory we have left.
  const char* file = access(info.dli_fname, R_OK) == 0 ? info.dli_fname : exe;
  const std::string command =
      format("addr2line -C -f -i -s -e '%s' 0x%zx 2>/dev/null", file, static_cast<std::size_t>(offset));
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return text;
  std::string places;
  char name[2048] = "", place[512] = "";
  while (std::fgets(name, sizeof name, pipe) &&
         std::fgets(place, sizeof place, pipe)) {  // innermost frame first
    place[std::strcspn(place, " \n")] = 0;         // also cuts " (discriminator 1)"
    name[std::strcspn(name, "\n")] = 0;
    if (std::strcmp(place, "??:0") != 0)
      places += (places.empty() ? "" : ", inlined at ") + std::string(place);
  }
  pclose(pipe);
  if (function && name[0] != 0 && name[0] != '?') text = name;
  if (!function && !places.empty()) text = places;
  return text;
}

}  // namespace

const char* kernel_name(const void* function) {
  static std::map<const void*, std::string> names;
  std::string& name = names[function];
  if (name.empty()) name = symbolize(function, true);
  return name.c_str();
}

std::recursive_mutex& mutex() {
  static std::recursive_mutex m;
  return m;
}

std::string format(const char* fmt, ...) {
  char buffer[4096];
  va_list args;
  va_start(args, fmt);
  std::vsnprintf(buffer, sizeof buffer, fmt, args);
  va_end(args);
  return buffer;
}

const char* to_string(Violation v) {
  switch (v) {
    case Violation::out_of_bounds:
      return "out_of_bounds";
    case Violation::use_after_free:
      return "use_after_free";
    case Violation::invalid_address:
      return "invalid_address";
    case Violation::misaligned:
      return "misaligned";
    case Violation::uninitialized:
      return "uninitialized";
    case Violation::race:
      return "race";
    case Violation::divergent_barrier:
      return "divergent_barrier";
    case Violation::deadlock:
      return "deadlock";
    case Violation::warp_misuse:
      return "warp_misuse";
    case Violation::trap:
      return "trap";
    case Violation::api_misuse:
      return "api_misuse";
    case Violation::canary:
      return "canary";
  }
  return "?";
}

void report(Violation kind, const std::string& text) {
  std::lock_guard lock(mutex());
  reports.push_back({kind, text});
  std::fprintf(stderr, "needle cuda emulator: %s: %s\n", to_string(kind), text.c_str());
  static const bool abort_now = std::getenv("NEEDLE_EMU_ABORT") != nullptr;
  if (abort_now) std::abort();
}

bool has_new_reports() { return reports.size() > first_new; }
void reset_new_reports() { first_new = reports.size(); }

cudaError_t error_of_first_new_report() {
  switch (reports[first_new].kind) {
    case Violation::out_of_bounds:
    case Violation::use_after_free:
    case Violation::invalid_address:
      return cudaErrorIllegalAddress;
    case Violation::misaligned:
      return cudaErrorMisalignedAddress;
    case Violation::trap:
      return cudaErrorAssert;
    default:
      return cudaErrorLaunchFailure;
  }
}

std::vector<Report> take_reports() {
  std::lock_guard lock(mutex());
  first_new = 0;
  return std::exchange(reports, {});
}

// A return address points behind the call; the byte before it belongs to the right line.
std::string describe_pc(const void* pc) {
  return pc == nullptr ? "?" : symbolize(static_cast<const char*>(pc) - 1, false);
}
std::string describe_function(const void* function) { return symbolize(function, true); }

}  // namespace needle::cuda::emu
