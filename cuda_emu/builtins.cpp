// What kernels call: who they are, barriers, warp operations, shared memory.
#include "cuda_emu/scheduler.h"

namespace needle::cuda::emu {

uint3 thread_idx() noexcept { return runner().thread_index; }
uint3 block_idx() noexcept { return runner().block_index; }
dim3 block_dim() noexcept { return runner().block_; }
dim3 grid_dim() noexcept { return runner().grid_; }

// Kernels enter the runtime through these.  Meanwhile `current` is null: the linker may have picked
// the instrumented copy (from a .cu file) of a std:: function that the runtime uses as well.
namespace {
struct RuntimeScope {
  RuntimeScope() { current = nullptr; }
  ~RuntimeScope() { current = &runner().exec; }
};
}  // namespace

int block_barrier(BarrierOp op, int predicate, const char* file, int line) {
  RuntimeScope scope;
  return runner().barrier(op, predicate, file, line);
}
std::uint64_t warp_collective(WarpOp op, unsigned mask, std::uint64_t value, int operand, int width,
                              const char* file, int line) {
  RuntimeScope scope;
  return runner().warp_op(op, mask, value, operand, width, file, line);
}
void warp_together(WarpOp op, void* operands, WarpFunction* together, const char* file, int line) {
  RuntimeScope scope;
  if (op == WarpOp::mma && compute_capability() < 80) {
    report(Violation::trap,
           format("mma of bfloat16 in %s:%d needs compute capability 8.0, this GPU has %d.%d; %s", file, line,
                  compute_capability() / 10, compute_capability() % 10, describe_launch().c_str()));
    kill_launch();
  }
  runner().warp_op(op, ~0u, reinterpret_cast<std::uint64_t>(operands), 0, 32, file, line, together);
}
void async_copy(void* shared, const void* bytes, unsigned size) {
  RuntimeScope scope;
  runner().async_copy(shared, bytes, size, __builtin_return_address(0));
}
void async_commit() { runner().async_commit(); }
void async_wait(std::size_t newest) {
  RuntimeScope scope;
  runner().async_wait(newest);
}
void require_shared(const void* p, unsigned align, const char* what, const char* file, int line) {
  const std::size_t offset = arena_offset(p);
  if (offset < kSharedBytes && offset % align == 0) return;
  RuntimeScope scope;
  report(offset < kSharedBytes ? Violation::misaligned : Violation::invalid_address,
         format("%s in %s:%d by thread %s: %s is not a %u-byte aligned address of shared memory; %s", what,
                file, line, describe_thread(runner().exec.tid).c_str(), describe_address(p).c_str(), align,
                describe_launch().c_str()));
  kill_launch();
}
void* static_shared(const void* tag, std::size_t size, std::size_t align, const char* name, const char* file,
                    int line) {
  RuntimeScope scope;
  return runner().static_shared(tag, size, align, name, file, line);
}
void* dynamic_shared() { return runner().dynamic_shared(); }

void trap(const char* what, const char* file, int line) {
  RuntimeScope scope;
  report(Violation::trap, format("%s in %s:%d by thread %s in %s", what, file, line,
                                 describe_thread(runner().exec.tid).c_str(), describe_launch().c_str()));
  kill_launch();
}

}  // namespace needle::cuda::emu
