// Access checking.  The .cu files are compiled with -fsanitize=thread, which makes the compiler call
// __tsan_read4(address), __tsan_write4(address), ... before every load and store that may touch
// memory other threads can see.  We do NOT link ThreadSanitizer: the functions below are our own
// and check each access against a shadow of device memory (the same trick as Linux's KCSAN).
//
// For every 4 bytes of device memory there is one Cell that knows which of the bytes exist, which
// have been written, and who wrote and read them last.  Where bytes of one word have different
// histories (bfloat16, int8), the word's cell is expanded into four byte cells.
//
// Order between two accesses to the same bytes in one launch:
//   - different blocks: never ordered (only atomics may meet);
//   - same block, earlier interval (a __syncthreads() lies between): ordered;
//   - same block, same interval: ordered if it is the same thread, or the same warp and a
//     __syncwarp() lies between.
// This does not depend on the order in which the threads happened to run, so one run suffices.
#include <link.h>
#include <sys/mman.h>

#include <array>
#include <cstdlib>
#include <utility>
#include <vector>

#include "cuda_emu/internal.h"

namespace needle::cuda::emu {

constinit thread_local Exec* current = nullptr;

#if NEEDLE_EMU_IS_CHECKED

namespace {

struct Cell {
  std::uint64_t w;   // last write: interval 36, tid 10, warp epoch 11, atomic 1, several 1, fine 1, written 4
  std::uint64_t r;   // last read: interval 36, tid 10, warp epoch 11, kind 2, other block 1, exists 4
  std::int32_t wpc;  // where (offset from text_base)
  std::int32_t rpc;
};

constexpr std::uint64_t kIntervalMask = (std::uint64_t{1} << 36) - 1;
constexpr int kTidShift = 36, kEpochShift = 46, kTopShift = 60;
constexpr std::uint64_t kTidMask = 1023, kEpochMask = 2047;
constexpr std::uint64_t kAtomic = std::uint64_t{1} << 57, kSeveral = std::uint64_t{1} << 58,
                        kFine = std::uint64_t{1} << 59;
constexpr int kKindShift = 57;
constexpr std::uint64_t kKindMask = std::uint64_t{3} << kKindShift;
constexpr std::uint64_t kOneThread = 0, kOneWarp = 1, kManyWarps = 2;
constexpr std::uint64_t kOtherBlock = std::uint64_t{1} << 59;
constexpr std::uint64_t kTopMask = std::uint64_t{15} << kTopShift;

Cell* cells = nullptr;       // one per word
Cell* fine_cells = nullptr;  // one per byte, used where the word's cell has kFine
const char* text_base = nullptr;

enum class Access { read, write, atomic };
const char* to_string(Access a) {
  return a == Access::read ? "read" : a == Access::write ? "write" : "atomic update";
}

std::int32_t encode_pc(const void* pc) {
  return static_cast<std::int32_t>(static_cast<const char*>(pc) - text_base);
}
std::string decode_pc(std::int32_t pc) { return pc == 0 ? "?" : describe_pc(text_base + pc); }

void expand(std::size_t word) {
  Cell& c = cells[word];
  c.w |= kFine;
  for (std::size_t b = 0; b < 4; ++b) {
    Cell& f = fine_cells[4 * word + b];
    f = c;
    f.w = (c.w & ~(kTopMask | kFine)) | (((c.w >> (kTopShift + b)) & 1) << kTopShift);
    f.r = (c.r & ~kTopMask) | (((c.r >> (kTopShift + b)) & 1) << kTopShift);
  }
}

// Reports of one launch are limited: one per place and kind, 10 in all.
struct Limiter {
  std::uint64_t launch = 0;
  std::size_t used = 0;
  std::array<std::pair<const void*, Violation>, 10> seen;
  bool allow(std::uint64_t this_launch, const void* pc, Violation v) {
    if (launch != this_launch) launch = this_launch, used = 0;
    for (std::size_t i = 0; i < used; ++i)
      if (seen[i] == std::pair{pc, v}) return false;
    if (used == seen.size()) return false;
    seen[used++] = {pc, v};
    return true;
  }
} limiter;

[[gnu::noinline, gnu::cold]] void report_access(Violation v, Access a, unsigned size, const void* address,
                                                const void* pc, const std::string& detail) {
  Exec* const exec = std::exchange(current, nullptr);  // no checks in here (see RuntimeScope in exec.cpp)
  if (limiter.allow(exec->launch_first, pc, v))
    report(v, format("%u-byte %s of %s at %s by thread %s in %s%s", size, to_string(a),
                     describe_address(address).c_str(), describe_pc(pc).c_str(),
                     describe_thread(exec->tid).c_str(), describe_launch().c_str(), detail.c_str()));
  current = exec;
}

[[noreturn, gnu::noinline, gnu::cold]] void report_bad_address(Access a, unsigned size, const void* address,
                                                               const void* pc) {
  Exec* const exec = std::exchange(current, nullptr);
  const bool freed = is_freed(address);
  current = exec;
  report_access(freed ? Violation::use_after_free : Violation::out_of_bounds, a, size, address, pc, "");
  kill_launch();
}

[[gnu::noinline, gnu::cold]] void report_race(Access a, unsigned size, const void* address, const void* pc,
                                              const Cell& c, bool with_write) {
  Exec* const exec = std::exchange(current, nullptr);
  const std::uint64_t other = with_write ? c.w : c.r;
  const bool same_block = (other & kIntervalMask) >= exec->block_first;
  const char* what = with_write ? ((c.w & kAtomic) ? "atomic update" : "write") : "read";
  const auto tid = static_cast<unsigned>((other >> kTidShift) & kTidMask);
  const std::string who = same_block ? "thread " + describe_thread(tid) : "a thread of another block";
  const std::string detail = format("\n    conflicts with the %s at %s by %s; no barrier orders them", what,
                                    decode_pc(with_write ? c.wpc : c.rpc).c_str(), who.c_str());
  current = exec;
  report_access(Violation::race, a, size, address, pc, detail);
}

// Is the earlier access (thread and warp epoch in `stamp`) of this interval ordered before ours?
inline bool ordered_in_interval(std::uint64_t stamp, const Exec& e) {
  const auto tid = static_cast<unsigned>((stamp >> kTidShift) & kTidMask);
  if (tid == e.tid) return true;
  return tid / 32 == e.tid / 32 && ((stamp >> kEpochShift) & kEpochMask) != (e.warp_epoch & kEpochMask);
}

// mask: which of the cell's bytes are touched (bit 0 only, for byte cells).
template <Access A>
inline void check_cell(Cell& c, std::uint64_t mask, const Exec& e, unsigned size, const void* address,
                       const void* pc) {
  const std::uint64_t top = mask << kTopShift;
  if ((c.r & top) != top) [[unlikely]] {
    report_bad_address(A, size, address, pc);
  }
  if constexpr (A != Access::write) {
    if ((c.w & top) != top) [[unlikely]] {
      report_access(Violation::uninitialized, A, size, address, pc, "");
      c.w |= top;  // once is enough
    }
  }
  // Against the last write.
  const std::uint64_t wi = c.w & kIntervalMask;
  if (wi >= e.launch_first) {
    const bool both_atomic = A == Access::atomic && (c.w & kAtomic) != 0;
    if (!both_atomic &&
        (wi < e.block_first || (wi == e.interval && ((c.w & kSeveral) != 0 || !ordered_in_interval(c.w, e)))))
        [[unlikely]]
      report_race(A, size, address, pc, c, true);
  }
  const std::uint64_t stamp = e.interval | (std::uint64_t{e.tid} << kTidShift) |
                              (std::uint64_t{e.warp_epoch & kEpochMask} << kEpochShift);
  const std::uint64_t ri = c.r & kIntervalMask;
  if constexpr (A != Access::read) {
    // Against earlier reads.
    if (ri >= e.launch_first) {
      bool conflict = ri < e.block_first || (c.r & kOtherBlock) != 0;
      if (!conflict && ri == e.interval) {
        const std::uint64_t kind = (c.r & kKindMask) >> kKindShift;
        if (kind == kOneThread) {
          conflict = !ordered_in_interval(c.r, e);
        } else {
          const auto tid = static_cast<unsigned>((c.r >> kTidShift) & kTidMask);
          conflict = kind == kManyWarps || tid / 32 != e.tid / 32 ||
                     ((c.r >> kEpochShift) & kEpochMask) == (e.warp_epoch & kEpochMask);
        }
      }
      if (conflict) [[unlikely]]
        report_race(A, size, address, pc, c, false);
    }
    std::uint64_t flags = 0;
    if constexpr (A == Access::atomic) {
      flags = kAtomic;
      const bool earlier_atomic = wi >= e.launch_first && (c.w & kAtomic) != 0;
      if (earlier_atomic &&
          ((c.w & kSeveral) != 0 || wi < e.block_first || ((c.w >> kTidShift) & kTidMask) != e.tid))
        flags |= kSeveral;
    }
    c.w = stamp | flags | (c.w & (kTopMask | kFine)) | top;
    c.wpc = encode_pc(pc);
  } else {
    std::uint64_t kind = kOneThread, other_block = 0;
    if (ri >= e.launch_first) {
      other_block = ri < e.block_first ? kOtherBlock : (c.r & kOtherBlock);
      if (ri == e.interval) {
        kind = (c.r & kKindMask) >> kKindShift;
        const auto tid = static_cast<unsigned>((c.r >> kTidShift) & kTidMask);
        if (kind == kManyWarps || tid / 32 != e.tid / 32) {
          kind = kManyWarps;
        } else if (tid != e.tid) {
          kind = kOneWarp;
        }
      }
    }
    c.r = stamp | (kind << kKindShift) | other_block | (c.r & kTopMask);
    c.rpc = encode_pc(pc);
  }
}

template <Access A>
[[gnu::noinline]] void check_bytes(std::size_t offset, unsigned size, const void* pc) {
  const Exec& e = *current;
  for (unsigned i = 0; i < size; ++i) {
    const std::size_t word = (offset + i) / 4;
    if ((cells[word].w & kFine) == 0) expand(word);
    check_cell<A>(fine_cells[offset + i], 1, e, size, arena + offset, pc);
  }
}

// Memory outside the arena: the thread's own stack, kernel arguments and constants are fine.
struct Segment {
  const char *begin, *end;
};
std::vector<Segment> segments;

int add_segments(dl_phdr_info* info, std::size_t, void*) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& ph = info->dlpi_phdr[i];
    if (ph.p_type != PT_LOAD) continue;
    const char* begin = reinterpret_cast<const char*>(info->dlpi_addr + ph.p_vaddr);
    segments.push_back({begin, begin + ph.p_memsz});
  }
  return 0;
}

[[gnu::noinline]] bool in_static_memory(const char* p) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    for (const Segment& s : segments)
      if (p >= s.begin && p < s.end) return true;
    if (attempt == 0) segments.clear(), dl_iterate_phdr(add_segments, nullptr);
  }
  return false;
}

template <Access A>
[[gnu::noinline]] void check_elsewhere(const void* address, unsigned size, const void* pc) {
  const auto* p = static_cast<const char*>(address);
  Exec* const e = current;
  if (p >= e->stack_begin && p < e->stack_end) return;
  if (p >= e->params_begin && p < e->params_end) return;
  current = nullptr;
  const bool is_static = in_static_memory(p);
  current = e;
  if (is_static) return;
  report_access(Violation::invalid_address, A, size, address, pc, "");
  kill_launch();
}

[[gnu::noinline, gnu::cold]] void host_access(const void* address, const void* pc) {
  std::fprintf(stderr, "needle cuda emulator: host code dereferenced a device pointer: %s at %s\n",
               describe_address(address).c_str(), describe_pc(pc).c_str());
  std::abort();
}

template <Access A, unsigned Size>
inline __attribute__((always_inline)) void check(const void* address, const void* pc) {
  const std::size_t offset = arena_offset(address);
  if (current == nullptr) {
    if (offset < arena_bytes) [[unlikely]]
      host_access(address, pc);
    return;
  }
  if (offset >= arena_bytes) {
    check_elsewhere<A>(address, Size, pc);
    return;
  }
#if defined(NEEDLE_EMU_COUNT)
  ++totals.checked_accesses;
#endif
  // (16-byte accesses: the compiler promises only 8; alignas(16) types fault by themselves.)
  if (offset % (Size < 8 ? Size : 8) != 0) [[unlikely]] {
    report_access(Violation::misaligned, A, Size, address, pc, "");
    kill_launch();
  }
  if constexpr (Size >= 4) {
    const std::size_t word = offset / 4;
    std::uint64_t fine = 0;
    for (unsigned i = 0; i < Size / 4; ++i) fine |= cells[word + i].w & kFine;
    if (fine == 0) [[likely]] {
      for (unsigned i = 0; i < Size / 4; ++i) check_cell<A>(cells[word + i], 15, *current, Size, address, pc);
      return;
    }
  }
  check_bytes<A>(offset, Size, pc);
}

template <Access A>
void check_range(const void* address, std::size_t size, const void* pc) {
  const std::size_t offset = arena_offset(address);
  if (current == nullptr) {
    if (offset < arena_bytes) host_access(address, pc);
  } else if (offset >= arena_bytes) {
    check_elsewhere<A>(address, static_cast<unsigned>(size), pc);
  } else {
    check_bytes<A>(offset, static_cast<unsigned>(size), pc);
  }
}

template <class F>
void for_each_word(const void* p, std::size_t bytes, F f) {
  const std::size_t offset = arena_offset(p);
  for (std::size_t i = 0; i < bytes; i += 4) {
    const std::uint64_t mask = bytes - i >= 4 ? 15 : (1u << (bytes - i)) - 1;
    f((offset + i) / 4, mask << kTopShift);
  }
}

}  // namespace

void init_shadow() {
  const std::size_t words = arena_bytes / 4;
  auto reserve = [](std::size_t bytes) {
    void* p =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    return static_cast<Cell*>(p);
  };
  cells = reserve(words * sizeof(Cell));
  fine_cells = reserve(4 * words * sizeof(Cell));
  text_base = reinterpret_cast<const char*>(&init_shadow);  // any address of this program's text
}

void shadow_set_live(void* p, std::size_t bytes) {
  for_each_word(p, bytes, [](std::size_t w, std::uint64_t top) { cells[w] = {0, top, 0, 0}; });
}
void shadow_clear(void* p, std::size_t bytes) {
  for_each_word(p, bytes, [](std::size_t w, std::uint64_t) { cells[w] = {}; });
}

// Copies, memset and cuBLAS.  p may start inside a word.
void shadow_mark_written(void* p, std::size_t bytes) {
  std::size_t offset = arena_offset(p);
  const std::size_t end = offset + bytes;
  auto mark_byte = [](std::size_t o) {
    Cell& c = cells[o / 4];
    if (c.w & kFine) fine_cells[o].w = std::uint64_t{1} << kTopShift;
    c.w = (c.w & (kTopMask | kFine)) | (std::uint64_t{1} << (kTopShift + o % 4));
  };
  while (offset < end && offset % 4 != 0) mark_byte(offset++);
  for (; offset + 4 <= end; offset += 4) cells[offset / 4].w = kTopMask;  // no longer fine
  while (offset < end) mark_byte(offset++);
}

void shadow_mark_uninitialized(void* p, std::size_t bytes) {
  for_each_word(p, bytes, [](std::size_t w, std::uint64_t) { cells[w].w = 0; });
}

void shadow_mark_unwritten(void* p, std::size_t bytes) {
  for_each_word(p, bytes, [](std::size_t w, std::uint64_t) {
    cells[w].w &= ~kTopMask;
    if ((cells[w].w & kFine) != 0)
      for (std::size_t b = 0; b < 4; ++b) fine_cells[4 * w + b].w &= ~kTopMask;
  });
}

void check_write(const Exec* exec, void* p, unsigned size, const void* pc) {
  current = const_cast<Exec*>(exec);
  for (unsigned i = 0; i < size; i += 4) check<Access::write, 4>(static_cast<char*>(p) + i, pc);
  current = nullptr;
}

namespace {
bool byte_written(std::size_t o) {
  const Cell& c = cells[o / 4];
  return (c.w & kFine) != 0 ? ((fine_cells[o].w >> kTopShift) & 1) != 0
                            : ((c.w >> (kTopShift + o % 4)) & 1) != 0;
}
}  // namespace

std::size_t shadow_first_uninitialized(const void* p, std::size_t bytes) {
  const std::size_t offset = arena_offset(p);
  std::size_t i = 0;
  while (i < bytes) {
    const Cell& c = cells[(offset + i) / 4];
    if ((offset + i) % 4 == 0 && i + 4 <= bytes && (c.w & kFine) == 0 && (c.w & kTopMask) == kTopMask) {
      i += 4;
    } else {
      if (!byte_written(offset + i)) return i;
      ++i;
    }
  }
  return bytes;
}

void shadow_copy(void* dst, const void* src, std::size_t bytes) {
  const std::size_t from = arena_offset(src);
  std::size_t i = 0;
  while (i < bytes) {
    const std::size_t good = i + shadow_first_uninitialized(static_cast<const char*>(src) + i, bytes - i);
    if (good > i) shadow_mark_written(static_cast<char*>(dst) + i, good - i);
    i = good;
    while (i < bytes && !byte_written(from + i)) {
      const std::size_t o = arena_offset(dst) + i;
      if ((cells[o / 4].w & kFine) == 0) expand(o / 4);
      fine_cells[o].w = 0;
      ++i;
    }
  }
}

void check_atomic(const void* address, unsigned size, void* pc) {
  switch (size) {
    case 2:
      check<Access::atomic, 2>(address, pc);
      break;
    case 4:
      check<Access::atomic, 4>(address, pc);
      break;
    default:
      check<Access::atomic, 8>(address, pc);
      break;
  }
}

#else  // unchecked build: poison, canaries and AddressSanitizer only

void init_shadow() {}
void shadow_set_live(void*, std::size_t) {}
void shadow_clear(void*, std::size_t) {}
void shadow_mark_written(void*, std::size_t) {}
void shadow_mark_uninitialized(void*, std::size_t) {}
void shadow_mark_unwritten(void*, std::size_t) {}
void check_write(const Exec*, void*, unsigned, const void*) {}
void shadow_copy(void*, const void*, std::size_t) {}
std::size_t shadow_first_uninitialized(const void*, std::size_t bytes) { return bytes; }
void check_atomic(const void*, unsigned, void*) {}

#endif

bool checked_build() { return kChecked; }

}  // namespace needle::cuda::emu

// --- the compiler's hooks ------------------------------------------------------------------------
#if NEEDLE_EMU_IS_CHECKED
using needle::cuda::emu::Access;
using needle::cuda::emu::check;
using needle::cuda::emu::check_range;

extern "C" {
#define NEEDLE_HOOKS(N)                                                                                    \
  void __tsan_read##N(void* p) { check<Access::read, N>(p, __builtin_return_address(0)); }                 \
  void __tsan_write##N(void* p) { check<Access::write, N>(p, __builtin_return_address(0)); }               \
  void __tsan_volatile_read##N(void* p) { check<Access::read, N>(p, __builtin_return_address(0)); }        \
  void __tsan_volatile_write##N(void* p) { check<Access::write, N>(p, __builtin_return_address(0)); }      \
  void __tsan_unaligned_read##N(void* p) { check_range<Access::read>(p, N, __builtin_return_address(0)); } \
  void __tsan_unaligned_write##N(void* p) { check_range<Access::write>(p, N, __builtin_return_address(0)); }
NEEDLE_HOOKS(1)
NEEDLE_HOOKS(2)
NEEDLE_HOOKS(4)
NEEDLE_HOOKS(8)
NEEDLE_HOOKS(16)
void __tsan_read_range(void* p, std::size_t n) {
  check_range<Access::read>(p, n, __builtin_return_address(0));
}
void __tsan_write_range(void* p, std::size_t n) {
  check_range<Access::write>(p, n, __builtin_return_address(0));
}

// clang calls these in place of the library functions; g++ inlines small copies and hooks them.
void* __tsan_memcpy(void* to, const void* from, std::size_t n) {
  check_range<Access::read>(from, n, __builtin_return_address(0));
  check_range<Access::write>(to, n, __builtin_return_address(0));
  return std::memcpy(to, from, n);
}
void* __tsan_memmove(void* to, const void* from, std::size_t n) {
  check_range<Access::read>(from, n, __builtin_return_address(0));
  check_range<Access::write>(to, n, __builtin_return_address(0));
  return std::memmove(to, from, n);
}
void* __tsan_memset(void* to, int value, std::size_t n) {
  check_range<Access::write>(to, n, __builtin_return_address(0));
  return std::memset(to, value, n);
}

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void**) {}
void __tsan_vptr_update(void**, void*) {}

// Host code in .cu files may use std::atomic, shared_ptr, local statics: plain atomics.
#define NEEDLE_ATOMIC_OP(BITS, T, OP) \
  T __tsan_atomic##BITS##_##OP(volatile T* p, T v, int) { return __atomic_##OP(p, v, __ATOMIC_SEQ_CST); }
#define NEEDLE_ATOMICS(BITS, T)                                                                           \
  T __tsan_atomic##BITS##_load(const volatile T* p, int) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); } \
  void __tsan_atomic##BITS##_store(volatile T* p, T v, int) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##BITS##_exchange(volatile T* p, T v, int) {                                             \
    return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                                   \
  }                                                                                                       \
  NEEDLE_ATOMIC_OP(BITS, T, fetch_add)                                                                    \
  NEEDLE_ATOMIC_OP(BITS, T, fetch_sub)                                                                    \
  NEEDLE_ATOMIC_OP(BITS, T, fetch_and)                                                                    \
  NEEDLE_ATOMIC_OP(BITS, T, fetch_or)                                                                     \
  NEEDLE_ATOMIC_OP(BITS, T, fetch_xor)                                                                    \
  NEEDLE_ATOMIC_OP(BITS, T, fetch_nand)                                                                   \
  int __tsan_atomic##BITS##_compare_exchange_strong(volatile T* p, T* e, T v, int, int) {                 \
    return __atomic_compare_exchange_n(p, e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);               \
  }                                                                                                       \
  int __tsan_atomic##BITS##_compare_exchange_weak(volatile T* p, T* e, T v, int, int) {                   \
    return __atomic_compare_exchange_n(p, e, v, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                \
  }
NEEDLE_ATOMICS(8, unsigned char)
NEEDLE_ATOMICS(16, unsigned short)
NEEDLE_ATOMICS(32, unsigned)
NEEDLE_ATOMICS(64, unsigned long)
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) {}
}
#endif
