#include "cuda_emu/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <new>

#if NEEDLE_EMU_ASM_SWITCH
// void needle_emu_switch(void** save_sp /*rdi*/, void* new_sp /*rsi*/)
// Saves the callee-saved registers of the System V ABI on the old stack and restores those found
// on the new one.  (MXCSR and the x87 control word are never changed by kernels.)
asm(R"(
    .text
    .globl needle_emu_switch
    .hidden needle_emu_switch
    .type needle_emu_switch, @function
    .align 16
needle_emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmpq *%rcx
    .size needle_emu_switch, .-needle_emu_switch
)");
extern "C" void needle_emu_switch(void** save_sp, void* new_sp);
#endif

namespace needle::cuda::emu {
namespace {
Fiber* volatile starting = nullptr;  // handed to the trampoline, which has no arguments
}

Fiber::Fiber(std::size_t stack_bytes) {
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  stack_bytes_ = (stack_bytes + page - 1) / page * page;
  void* p = mmap(nullptr, stack_bytes_ + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  mapping_ = static_cast<char*>(p);
  stack_ = mapping_ + page;
  if (mprotect(stack_, stack_bytes_, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
}

Fiber::~Fiber() {
#if NEEDLE_EMU_ASAN
  __asan_unpoison_memory_region(stack_, stack_bytes_);
#endif
  munmap(mapping_, stack_bytes_ + static_cast<std::size_t>(stack_ - mapping_));
}

void Fiber::start(Entry entry) {
  entry_ = entry;
#if NEEDLE_EMU_ASAN
  // A fiber abandoned after an error leaves its frames' red zones poisoned.
  __asan_unpoison_memory_region(stack_, stack_bytes_);
  fake_stack_ = nullptr;
#endif
#if NEEDLE_EMU_ASM_SWITCH
  // What needle_emu_switch pops: six registers, then the address to "return" to.  On entry to a
  // function the ABI wants rsp to be 8 modulo 16.
  auto* top = reinterpret_cast<std::uintptr_t*>(stack_ + stack_bytes_);
  *--top = 0;
  *--top = reinterpret_cast<std::uintptr_t>(&Fiber::trampoline);
  for (int i = 0; i < 6; ++i) *--top = 0;
  sp_ = top;
#else
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_;
  context_.uc_stack.ss_size = stack_bytes_;
  context_.uc_link = nullptr;
  makecontext(&context_, &Fiber::trampoline, 0);
#endif
}

void Fiber::trampoline() { starting->enter(); }

void Fiber::enter() {
#if NEEDLE_EMU_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &return_bottom_, &return_size_);
#endif
  entry_(this);
  std::abort();  // entry must not return
}

void Fiber::resume() {
  starting = this;
#if NEEDLE_EMU_ASAN
  void* my_fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&my_fake_stack, stack_, stack_bytes_);
#endif
#if NEEDLE_EMU_ASM_SWITCH
  needle_emu_switch(&return_sp_, sp_);
#else
  swapcontext(&return_context_, &context_);
#endif
#if NEEDLE_EMU_ASAN
  __sanitizer_finish_switch_fiber(my_fake_stack, nullptr, nullptr);
#endif
}

void Fiber::suspend() {
#if NEEDLE_EMU_ASAN
  __sanitizer_start_switch_fiber(&fake_stack_, return_bottom_, return_size_);
#endif
#if NEEDLE_EMU_ASM_SWITCH
  needle_emu_switch(&sp_, return_sp_);
#else
  swapcontext(&context_, &return_context_);
#endif
#if NEEDLE_EMU_ASAN
  __sanitizer_finish_switch_fiber(fake_stack_, &return_bottom_, &return_size_);
#endif
}

}  // namespace needle::cuda::emu
