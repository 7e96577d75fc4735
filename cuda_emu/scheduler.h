// Runs the blocks and threads of a launch, one after the other on the calling thread of the system; a CUDA
// thread that has to wait keeps a fiber (a stack) of its own, so that kernels without barriers are a plain
// loop.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "cuda_emu/internal.h"

namespace needle::cuda::emu {

inline constexpr std::size_t kStackBytes = (NEEDLE_EMU_ASAN ? 256 : 64) * 1024;
inline constexpr std::size_t kSharedGap = 256;  // dead bytes between shared arrays

inline constexpr const char* kWarpOpName[] = {
    "__syncwarp",      "__shfl_sync",   "__shfl_up_sync", "__shfl_down_sync",
    "__shfl_xor_sync", "__ballot_sync", "ldmatrix",       "mma"};

// Lanes of one warp meeting in one *_sync operation.
struct Rendezvous {
  WarpOp op;
  unsigned mask = 0;
  unsigned arrived = 0;  // lanes that came
  unsigned left = 0;     // lanes that took their result
  bool complete = false;
  WarpFunction* together = nullptr;  // ldmatrix, mma: computes for all lanes; value[] are their operands
  const char* file = nullptr;        // ... and all lanes come from one place (".aligned")
  int line = 0;
  std::uint64_t value[32];
  bool idle() const { return arrived == left; }
};

enum class Status : unsigned char { fresh, ready, running, at_barrier, at_warp_op, exited };

struct Thread {
  Status status = Status::fresh;
  Fiber* fiber = nullptr;
  const char* file = nullptr;  // where it waits
  int line = 0;
  BarrierOp barrier_op = BarrierOp::none;
  int predicate = 0;
  int barrier_result = 0;
  Rendezvous* rendezvous = nullptr;
};

struct Warp {
  unsigned live = 0;  // lanes that exist and have not exited
  unsigned epoch = 0;
  unsigned slots = 0;                   // meetings in use so far
  std::array<Rendezvous, 64> meetings;  // per lane at most one open and one not yet left
};

// Asynchronous copies (cp.async) of one thread that have not landed yet, oldest first.
struct AsyncCopy {
  char* to;
  unsigned size;
  std::uint64_t group;
  const void* pc;
  alignas(16) unsigned char bytes[16];
};
struct AsyncCopies {
  std::uint64_t groups = 0;  // committed so far
  std::deque<AsyncCopy> pending;
};

struct SharedArray {
  const void* tag;
  std::size_t offset, bytes;
  const char* name;
};

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {  // splitmix64
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(next() % n); }

 private:
  std::uint64_t state_;
};

/// The one kernel that runs.
class Runner {
 public:
  void run(const KernelCall& call, dim3 grid, dim3 block, std::size_t shared_bytes);

  // Called by the running CUDA thread:
  int barrier(BarrierOp op, int predicate, const char* file, int line);
  std::uint64_t warp_op(WarpOp op, unsigned mask, std::uint64_t value, int operand, int width,
                        const char* file, int line, WarpFunction* together = nullptr);
  void async_copy(void* shared, const void* bytes, unsigned size, const void* pc);
  void async_commit() { ++async_[running_].groups; }
  void async_wait(std::size_t newest);
  void* static_shared(const void* tag, std::size_t size, std::size_t align, const char* name,
                      const char* file, int line);
  void* dynamic_shared() { return arena + dynamic_offset_; }
  [[noreturn]] void kill() {
    current = nullptr;
    killed_ = true;
    running_fiber_->suspend();  // never resumed
    __builtin_unreachable();
  }

  uint3 index_of(unsigned tid) const {
    return {tid % block_.x, tid / block_.x % block_.y, tid / (block_.x * block_.y)};
  }

  Exec exec;
  uint3 thread_index{}, block_index{};
  dim3 block_, grid_;
  const KernelCall* call_ = nullptr;
  std::vector<SharedArray> shared_;

 private:
  static void worker(Fiber* fiber);
  void run_block();
  void begin_thread(unsigned tid, Fiber* fiber);
  void set_current(unsigned tid);
  void end_thread();
  void wait(Status why, const char* file, int line);
  void make_ready(unsigned tid);
  void release_barrier_if_complete();
  void complete_if_all_came(Warp& warp, unsigned warp_number, Rendezvous& r, unsigned skip);
  void new_interval();
  void report_deadlock();
  bool next_fresh(unsigned* tid);

  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  Fiber* running_fiber_ = nullptr;
  std::vector<Thread> threads_;
  std::vector<uint3> indices_;
  std::vector<Warp> warps_;
  std::vector<AsyncCopies> async_;
  std::vector<unsigned> ready_;  // queue of threads that may go on: [ready_head_, end)
  std::size_t ready_head_ = 0;
  std::vector<unsigned> order_;  // threads in starting order
  unsigned started_ = 0, running_ = 0, thread_count_ = 0, exited_ = 0, at_barrier_ = 0;
  bool killed_ = false;
  bool random_ = false;
  Random rng_{0};
  std::size_t shared_end_ = 0, shared_used_ = 0, dynamic_offset_ = 0, dynamic_bytes_ = 0;
  bool divergence_reported_ = false, misuse_reported_ = false;  // once per launch
};

Runner& runner();

}  // namespace needle::cuda::emu
