// The emulated device's address space: allocation, poison, protection from host code.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <list>
#include <map>
#include <new>

#include "cuda_emu/internal.h"

namespace needle::cuda::emu {

char* arena = nullptr;
std::size_t arena_bytes = 0;

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kRedZone = 256;  // at least this much dead space behind every allocation

struct Allocation {
  std::size_t bytes = 0;     // as requested
  std::size_t reserved = 0;  // whole pages, red zone included
  std::size_t id = 0;
  bool live = false;
};

struct State {
  std::map<std::size_t, Allocation> allocations;  // by offset; freed ones stay until reused
  std::list<std::size_t> freed;                   // offsets, oldest first (quarantine)
  std::size_t bump = kSharedBytes;                // fresh addresses from here on
  std::size_t next_id = 1;
  std::size_t live_bytes = 0, live_count = 0;
  std::size_t limit = std::size_t{1} << 30;
  std::size_t fail_at = 0;
  int access_depth = 0;
  struct sigaction old_segv = {};
};
State& state() {
  static State s;
  return s;
}

// The allocation whose pages contain the offset, live or not.
std::map<std::size_t, Allocation>::iterator find(std::size_t offset) {
  auto& m = state().allocations;
  auto it = m.upper_bound(offset);
  if (it == m.begin()) return m.end();
  --it;
  return offset < it->first + it->second.reserved ? it : m.end();
}

void fill(std::size_t offset, std::size_t bytes) { std::memset(arena + offset, kPoison, bytes); }

void on_segv(int, siginfo_t* info, void*) {
  // Not async-signal-safe, but the process is about to die anyway.
  if (arena_offset(info->si_addr) < arena_bytes && state().access_depth == 0) {
    std::fprintf(stderr, "needle cuda emulator: host code dereferenced a device pointer: %s\n",
                 describe_address(info->si_addr).c_str());
    std::fflush(stderr);
  } else if (current != nullptr) {
    std::fprintf(stderr, "needle cuda emulator: invalid access to %p in %s, thread %s\n", info->si_addr,
                 describe_launch().c_str(), describe_thread(current->tid).c_str());
    std::fflush(stderr);
  }
  // Back to the previous handler (gtest's, a sanitizer's or the default); the access repeats.
  sigaction(SIGSEGV, &state().old_segv, nullptr);
}

}  // namespace

void init_memory() {
  static const bool done = [] {
    const char* gib = std::getenv("NEEDLE_EMU_ARENA_GIB");
    arena_bytes = (gib != nullptr ? std::strtoull(gib, nullptr, 10) : 2) << 30;
    void* p = mmap(nullptr, arena_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    arena = static_cast<char*>(p);
    madvise(arena, arena_bytes, MADV_HUGEPAGE);  // makes opening and closing the arena cheap
    init_shadow();
    // The handler needs its own stack: the fault may be an overflow of a fiber's stack.
    static char alternate_stack[64 * 1024];
    stack_t ss = {};
    ss.ss_sp = alternate_stack;
    ss.ss_size = sizeof alternate_stack;
    sigaltstack(&ss, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = on_segv;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &state().old_segv);
    return true;
  }();
  (void)done;
}

DeviceAccess::DeviceAccess() {
  init_memory();
  if (state().access_depth++ == 0 && mprotect(arena, state().bump, PROT_READ | PROT_WRITE) != 0) std::abort();
}
DeviceAccess::~DeviceAccess() {
  if (--state().access_depth == 0 && mprotect(arena, state().bump, PROT_NONE) != 0) std::abort();
}

void* allocate(std::size_t bytes) {
  init_memory();
  State& s = state();
  if (s.fail_at != 0 && --s.fail_at == 0) return nullptr;
  if (bytes > s.limit || s.live_bytes > s.limit - bytes) return nullptr;
  const std::size_t reserved = (bytes + kRedZone + kPage - 1) / kPage * kPage;
  std::size_t offset = 0;
  if (s.bump + reserved <= arena_bytes) {
    offset = s.bump;
    s.bump += reserved;
    if (s.access_depth > 0) mprotect(arena + offset, reserved, PROT_READ | PROT_WRITE);
  } else {
    // Fresh addresses are used up: take the block that was freed longest ago and is large enough.
    for (auto it = s.freed.begin(); it != s.freed.end() && offset == 0; ++it) {
      auto block = s.allocations.find(*it);
      if (block->second.reserved < reserved) continue;
      offset = block->first;
      const std::size_t rest = block->second.reserved - reserved;
      s.allocations.erase(block);
      s.freed.erase(it);
      if (rest > 0) {
        s.allocations[offset + reserved] = {0, rest, 0, false};
        s.freed.push_back(offset + reserved);
      }
      break;
    }
    if (offset == 0) return nullptr;
  }
  s.allocations[offset] = {bytes, reserved, s.next_id++, true};
  s.live_bytes += bytes;
  ++s.live_count;
  DeviceAccess open;
#if NEEDLE_EMU_ASAN
  __asan_unpoison_memory_region(arena + offset, bytes);
  __asan_poison_memory_region(arena + offset + bytes, reserved - bytes);
  fill(offset, bytes);
#else
  fill(offset, reserved);
#endif
  shadow_set_live(arena + offset, bytes);
  return arena + offset;
}

bool deallocate(void* p) {
  State& s = state();
  auto it = s.allocations.find(arena_offset(p));
  if (it == s.allocations.end() || !it->second.live) return false;
  check_canaries();
  Allocation& a = it->second;
  shadow_clear(p, a.bytes);
  madvise(p, a.reserved, MADV_DONTNEED);
#if NEEDLE_EMU_ASAN
  __asan_poison_memory_region(p, a.reserved);
#endif
  a.live = false;
  s.live_bytes -= a.bytes;
  --s.live_count;
  s.freed.push_back(it->first);
  return true;
}

void free_everything() {
  std::vector<void*> live;
  for (auto& [offset, a] : state().allocations)
    if (a.live) live.push_back(arena + offset);
  for (void* p : live) deallocate(p);
}

bool is_device_pointer(const void* p) { return arena != nullptr && arena_offset(p) < arena_bytes; }

bool range_is_live(const void* p, std::size_t bytes, std::string* why) {
  if (!is_device_pointer(p)) {
    *why = format("%p is not a device pointer", p);
    return false;
  }
  const std::size_t offset = arena_offset(p);
  auto it = find(offset);
  if (it == state().allocations.end() || !it->second.live || offset + bytes > it->first + it->second.bytes) {
    *why = format("%zu bytes at %s", bytes, describe_address(p).c_str());
    return false;
  }
  return true;
}

bool is_freed(const void* p) {
  const std::size_t offset = arena_offset(p);
  if (offset < kSharedBytes || offset >= arena_bytes) return false;
  auto it = find(offset);
  return it != state().allocations.end() && !it->second.live;
}

std::string describe_address(const void* p) {
  if (!is_device_pointer(p)) return format("%p (not device memory)", p);
  const std::size_t offset = arena_offset(p);
  if (offset < kSharedBytes) return format("%p (%s)", p, describe_shared(offset).c_str());
  auto it = find(offset);
  if (it == state().allocations.end()) return format("%p (device memory that was never allocated)", p);
  const Allocation& a = it->second;
  const std::size_t inside = offset - it->first;
  return format("%p (byte %zu of %sallocation #%zu, %zu bytes)", p, inside, a.live ? "" : "freed ", a.id,
                a.bytes);
}

// Unchecked builds only: finds writes behind an allocation after the fact.
void check_canaries() {
#if !NEEDLE_EMU_IS_CHECKED && !NEEDLE_EMU_ASAN
  DeviceAccess open;
  for (auto& [offset, a] : state().allocations) {
    if (!a.live) continue;
    for (std::size_t i = a.bytes; i < a.bytes + kRedZone; ++i) {
      if (static_cast<unsigned char>(arena[offset + i]) == kPoison) continue;
      report(Violation::canary, "something wrote to " + describe_address(arena + offset + i));
      fill(offset + a.bytes, a.reserved - a.bytes);
      break;
    }
  }
#endif
}

std::size_t live_bytes() { return state().live_bytes; }
std::size_t live_allocations() { return state().live_count; }
std::size_t memory_limit() { return state().limit; }
void set_memory_limit(std::size_t bytes) { state().limit = bytes; }
void fail_malloc(std::size_t n) { state().fail_at = n; }

}  // namespace needle::cuda::emu
