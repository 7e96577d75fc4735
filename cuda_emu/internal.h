// Private declarations shared by the emulator's translation units.  None of them is compiled with
// -fsanitize=thread: only the .cu files are.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "cuda_emu/control.h"
#include "cuda_emu/fiber.h"

#if defined(NEEDLE_EMU_CHECKED)
#define NEEDLE_EMU_IS_CHECKED 1
#else
#define NEEDLE_EMU_IS_CHECKED 0
#endif

namespace needle::cuda::emu {

inline constexpr bool kChecked = NEEDLE_EMU_IS_CHECKED;
inline constexpr unsigned char kPoison = 0xFF;  // NaN as float, half and bfloat16; -1 as int

// One lock for the whole emulator: the API may be called from several host threads.
std::recursive_mutex& mutex();
/// What a kernel is called in the source, with its parameters.
const char* kernel_name(const void* function);

// --- errors.cpp --------------------------------------------------------------------------------
void report(Violation kind, const std::string& text);  // records and prints
bool has_new_reports();                                // since reset_new_reports()
void reset_new_reports();
cudaError_t error_of_first_new_report();
std::string describe_pc(const void* pc);  // "function at file:line"
std::string describe_function(const void* function);
std::string format(const char* fmt, ...) __attribute__((format(printf, 1, 2)));

// --- memory.cpp: the device's address space ------------------------------------------------------
// A reserved range of virtual addresses.  Its first kSharedBytes hold the shared memory of the block
// that is running, the rest is for cudaMalloc.  Pages are inaccessible while host code runs.
inline constexpr std::size_t kSharedBytes = std::size_t{1} << 20;
extern char* arena;              // base address
extern std::size_t arena_bytes;  // reserved
inline std::size_t arena_offset(const void* p) {
  return static_cast<std::size_t>(static_cast<const char*>(p) - arena);  // >= arena_bytes: not ours
}

void init_memory();
void* allocate(std::size_t bytes);
bool deallocate(void* p);  // false: not the start of a live allocation
void free_everything();
bool is_device_pointer(const void* p);
// True if [p, p+bytes) lies in one live allocation; else explains why not.
bool range_is_live(const void* p, std::size_t bytes, std::string* why);
std::string describe_address(const void* p);
bool is_freed(const void* p);  // inside an allocation that was freed
void check_canaries();
std::size_t live_bytes();
std::size_t live_allocations();
std::size_t memory_limit();

// Opens the arena for access while it exists (device code, copies); nests.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
};

// --- check.cpp: shadow memory; everything here does nothing in unchecked builds --------------------
void shadow_set_live(void* p, std::size_t bytes);  // addressable, not initialised, no history
void shadow_clear(void* p, std::size_t bytes);     // not addressable
void shadow_mark_written(void* p, std::size_t bytes);
void shadow_mark_uninitialized(void* p, std::size_t bytes);
void shadow_mark_unwritten(void* p, std::size_t bytes);  // keeps the history; p and bytes: multiples of 4
struct Exec;
void check_write(const Exec* exec, void* p, unsigned size,
                 const void* pc);  // a write by a CUDA thread, from the runtime
void shadow_copy(void* dst, const void* src, std::size_t bytes);
// Offset of the first uninitialised byte, or bytes if there is none.
std::size_t shadow_first_uninitialized(const void* p, std::size_t bytes);
void init_shadow();

// --- exec.cpp ------------------------------------------------------------------------------------
// What the access checks need to know about the CUDA thread that is running on this OS thread.
struct Exec {
  std::uint64_t interval = 0;      // number of the span between two block barriers; grows for ever
  std::uint64_t block_first = 0;   // first interval of the running block
  std::uint64_t launch_first = 0;  // first interval of the running launch
  unsigned tid = 0;                // linear thread number in the block
  unsigned warp_epoch = 0;         // number of __syncwarp() of this warp in this interval
  const char *stack_begin = nullptr, *stack_end = nullptr;
  const char *params_begin = nullptr, *params_end = nullptr;
};
extern constinit thread_local Exec* current;  // null while host code runs

std::string describe_thread(unsigned tid);  // of the running block
std::string describe_launch();
std::string describe_shared(std::size_t arena_offset);
[[noreturn]] void kill_launch();  // from inside a CUDA thread; the report has been made

void run_launch(const KernelCall& call, dim3 grid, dim3 block, std::size_t shared_bytes);

// --- runtime.cpp -----------------------------------------------------------------------------------
std::uint64_t seed();
// Queues work on a stream.  `run` is executed later on some host thread with the mutex held.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> run);
cudaError_t sticky_error();
int compute_capability();  // of the GPU that is emulated: NEEDLE_EMU_SM, 80
void fail_sticky(cudaError_t error);
std::size_t shared_limit_of(const void* function);  // static + dynamic bytes a block may have
extern Stats totals;

}  // namespace needle::cuda::emu
