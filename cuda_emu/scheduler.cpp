#include "cuda_emu/scheduler.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace needle::cuda::emu {

namespace {

std::uint64_t interval_counter = 1;

}  // namespace

Runner& runner() {
  static Runner r;
  return r;
}

void Runner::new_interval() {
  exec.interval = ++interval_counter;
  for (Warp& w : warps_) w.epoch = 0;
  exec.warp_epoch = 0;
}

void Runner::set_current(unsigned tid) {
  running_ = tid;
  thread_index = indices_[tid];
  exec.tid = tid;
  exec.warp_epoch = warps_[tid / 32].epoch;
  Thread& t = threads_[tid];
  t.status = Status::running;
  running_fiber_ = t.fiber;
  exec.stack_begin = t.fiber->stack_begin();
  exec.stack_end = t.fiber->stack_end();
}

bool Runner::next_fresh(unsigned* tid) {
  if (started_ == thread_count_) return false;
  *tid = order_[started_++];
  return true;
}

void Runner::begin_thread(unsigned tid, Fiber* fiber) {
  threads_[tid].fiber = fiber;
  set_current(tid);
}

// Body of every fiber: runs threads that have not started yet, as long as none of them waits.
void Runner::worker(Fiber* fiber) {
  Runner& r = runner();
  for (;;) {
    current = &r.exec;
    r.call_->run_thread();
    current = nullptr;
    r.end_thread();
    unsigned tid = 0;
    // In random order the scheduler decides what runs next.
    if (!r.random_ && !r.killed_ && r.next_fresh(&tid)) {
      r.begin_thread(tid, fiber);
    } else {
      r.idle_.push_back(fiber);
      fiber->suspend();
    }
  }
}

void Runner::end_thread() {
  threads_[running_].status = Status::exited;
  ++exited_;
  if (!async_[running_].pending.empty() && !misuse_reported_) {
    misuse_reported_ = true;
    report(Violation::api_misuse,
           format("thread %s returned without waiting for its asynchronous copy at %s; %s",
                  describe_thread(running_).c_str(), describe_pc(async_[running_].pending.front().pc).c_str(),
                  describe_launch().c_str()));
  }
  const unsigned w = running_ / 32;
  warps_[w].live &= ~(1u << (running_ % 32));
  for (unsigned i = 0; i < warps_[w].slots; ++i) {
    Rendezvous& r = warps_[w].meetings[i];
    if (r.arrived != 0 && !r.complete) complete_if_all_came(warps_[w], w, r, 0);
  }
  release_barrier_if_complete();
}

void Runner::make_ready(unsigned tid) {
  threads_[tid].status = Status::ready;
  ready_.push_back(tid);
}

void Runner::wait(Status why, const char* file, int line) {
  Thread& t = threads_[running_];
  t.status = why;
  t.file = file;
  t.line = line;
  t.fiber->suspend();
}

void Runner::release_barrier_if_complete() {
  if (at_barrier_ == 0 || at_barrier_ + exited_ < thread_count_) return;
  int count = 0;
  const Thread* first = nullptr;
  unsigned first_tid = 0;
  for (unsigned i = 0; i < thread_count_; ++i) {
    Thread& t = threads_[i];
    if (t.status != Status::at_barrier) continue;
    count += t.predicate != 0;
    if (first == nullptr) {
      first = &t, first_tid = i;
    } else if (!divergence_reported_ && (t.line != first->line || std::strcmp(t.file, first->file) != 0)) {
      divergence_reported_ = true;
      report(Violation::divergent_barrier,
             format("thread %s waits at __syncthreads() in %s:%d, thread %s in %s:%d; %s",
                    describe_thread(first_tid).c_str(), first->file, first->line, describe_thread(i).c_str(),
                    t.file, t.line, describe_launch().c_str()));
    }
  }
  if (exited_ > 0 && !divergence_reported_) {
    divergence_reported_ = true;
    report(Violation::divergent_barrier,
           format("%u thread(s) returned before the __syncthreads() in %s:%d that %u thread(s) reached; %s",
                  exited_, first->file, first->line, at_barrier_, describe_launch().c_str()));
  }
  for (unsigned i = 0; i < thread_count_; ++i) {
    Thread& t = threads_[i];
    if (t.status != Status::at_barrier) continue;
    t.barrier_result = t.barrier_op == BarrierOp::count        ? count
                       : t.barrier_op == BarrierOp::logical_or ? count > 0
                                                               : count == static_cast<int>(at_barrier_);
    make_ready(i);
  }
  at_barrier_ = 0;
  ++totals.barriers;
  new_interval();
}

int Runner::barrier(BarrierOp op, int predicate, const char* file, int line) {
  Thread& t = threads_[running_];
  t.barrier_op = op;
  t.predicate = predicate;
  t.status = Status::at_barrier;
  t.file = file;
  t.line = line;
  ++at_barrier_;
  release_barrier_if_complete();  // makes this thread ready too if it came last
  t.fiber->suspend();
  return t.barrier_result;
}

void* Runner::static_shared(const void* tag, std::size_t size, std::size_t align, const char* name,
                            const char* file, int line) {
  for (const SharedArray& a : shared_)
    if (a.tag == tag) return arena + a.offset;
  const std::size_t step = std::max<std::size_t>(align, 16);
  const std::size_t offset = (shared_end_ + step - 1) / step * step;
  shared_used_ += (size + 15) / 16 * 16;
  if (shared_used_ + dynamic_bytes_ > shared_limit_of(call_->function) ||
      offset + size + kSharedGap > kSharedBytes) {
    report(Violation::api_misuse,
           format("%s:%d: %s needs %zu bytes of static and %zu of dynamic shared memory; the limit is %zu",
                  file, line, describe_launch().c_str(), shared_used_, dynamic_bytes_,
                  shared_limit_of(call_->function)));
    kill();
  }
  shared_.push_back({tag, offset, size, name});
  shared_end_ = offset + size + kSharedGap;
#if NEEDLE_EMU_ASAN
  __asan_unpoison_memory_region(arena + offset, size);
#endif
  std::memset(arena + offset, kPoison, size);
  shadow_set_live(arena + offset, size);
  return arena + offset;
}

void Runner::report_deadlock() {
  std::string text = describe_launch() + ":";
  for (unsigned i = 0; i < thread_count_;) {
    // One line per run of threads that wait at the same place.
    unsigned j = i;
    while (j + 1 < thread_count_ && threads_[j + 1].status == threads_[i].status &&
           threads_[j + 1].line == threads_[i].line)
      ++j;
    const Thread& t = threads_[i];
    const std::string range = i == j ? "thread " + describe_thread(i)
                                     : "threads " + describe_thread(i) + " to " + describe_thread(j);
    if (t.status == Status::at_barrier) {
      text += format("\n    %s wait at __syncthreads() in %s:%d", range.c_str(), t.file, t.line);
    } else if (t.status == Status::at_warp_op) {
      text += format("\n    %s wait at %s (mask %08x) in %s:%d", range.c_str(),
                     kWarpOpName[static_cast<int>(t.rendezvous->op)], t.rendezvous->mask, t.file, t.line);
    } else {
      text += format("\n    %s have returned", range.c_str());
    }
    i = j + 1;
  }
  report(Violation::deadlock, text);
}

void Runner::run_block() {
  threads_.assign(thread_count_, Thread{});
  async_.resize(thread_count_);
  for (AsyncCopies& a : async_) a.groups = 0, a.pending.clear();
  for (std::size_t w = 0; w < warps_.size(); ++w) {
    const unsigned lanes = std::min(32u, thread_count_ - static_cast<unsigned>(w) * 32);
    warps_[w].live = lanes == 32 ? ~0u : (1u << lanes) - 1;
    warps_[w].slots = 0;
  }
  ready_.clear();
  ready_head_ = 0;
  started_ = exited_ = at_barrier_ = 0;
  new_interval();
  exec.block_first = exec.interval;
  for (const SharedArray& a : shared_) {
    std::memset(arena + a.offset, kPoison, a.bytes);
    shadow_set_live(arena + a.offset, a.bytes);
  }
  if (random_)
    for (unsigned i = thread_count_; i > 1; --i) std::swap(order_[i - 1], order_[rng_.below(i)]);

  while (exited_ < thread_count_ && !killed_) {
    const bool fresh_left = started_ < thread_count_;
    if (!fresh_left && ready_.empty()) {
      report_deadlock();
      killed_ = true;
      break;
    }
    bool take_fresh = fresh_left;
    if (random_ && fresh_left && !ready_.empty()) take_fresh = rng_.below(2) == 0;
    unsigned tid = 0;
    if (take_fresh) {
      if (idle_.empty()) {
        fibers_.push_back(std::make_unique<Fiber>(kStackBytes));
        fibers_.back()->start(&Runner::worker);
        idle_.push_back(fibers_.back().get());
      }
      next_fresh(&tid);
      Fiber* fiber = idle_.back();
      idle_.pop_back();
      begin_thread(tid, fiber);
    } else {
      if (random_)
        std::swap(ready_[ready_head_], ready_[ready_head_ + rng_.below(ready_.size() - ready_head_)]);
      tid = ready_[ready_head_++];
      if (ready_head_ == ready_.size()) ready_.clear(), ready_head_ = 0;
      set_current(tid);
    }
    running_fiber_->resume();
  }
  ++totals.blocks;
  totals.threads += thread_count_;
}

void Runner::run(const KernelCall& call, dim3 grid, dim3 block, std::size_t shared_bytes) {
  call_ = &call;
  grid_ = grid;
  block_ = block;
  thread_count_ = block.x * block.y * block.z;
  killed_ = divergence_reported_ = misuse_reported_ = false;
  random_ = seed() != 0;
  rng_ = Random(seed() + totals.launches);
  warps_.resize((thread_count_ + 31) / 32);
  indices_.resize(thread_count_);
  for (unsigned i = 0; i < thread_count_; ++i) indices_[i] = index_of(i);
  order_.resize(thread_count_);
  std::iota(order_.begin(), order_.end(), 0u);
  exec.launch_first = ++interval_counter;
  exec.params_begin = reinterpret_cast<const char*>(&call);
  exec.params_end = exec.params_begin + call.object_size;

  DeviceAccess open;
  reset_new_reports();
  // Dynamic shared memory first, static arrays behind it as the kernel reaches them.
  shared_.clear();
  shared_used_ = 0;
  dynamic_offset_ = kSharedGap;
  dynamic_bytes_ = shared_bytes;
  shared_end_ = dynamic_offset_ + shared_bytes + kSharedGap;
#if NEEDLE_EMU_ASAN
  __asan_poison_memory_region(arena, kSharedBytes);
  __asan_unpoison_memory_region(arena + dynamic_offset_, shared_bytes);
#endif
  if (shared_bytes > 0) shared_.push_back({nullptr, dynamic_offset_, shared_bytes, "dynamic shared memory"});

  const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
  // Random order of the blocks: i -> (a i + b) mod blocks, with a prime to blocks.
  std::uint64_t a = 1, b = 0;
  if (random_ && blocks > 2) {
    b = rng_.next() % blocks;
    do a = 1 + rng_.next() % (blocks - 1);
    while (std::gcd(a, blocks) != 1);
  }
  for (std::uint64_t i = 0; i < blocks && !killed_; ++i) {
    const auto n = static_cast<std::uint64_t>((static_cast<unsigned __int128>(a) * i + b) % blocks);
    block_index = {static_cast<unsigned>(n % grid.x), static_cast<unsigned>(n / grid.x % grid.y),
                   static_cast<unsigned>(n / grid.x / grid.y)};
    run_block();
  }
  for (const SharedArray& s : shared_) shadow_clear(arena + s.offset, s.bytes);
  if (killed_) {
    // Threads were left in the middle of the kernel: every fiber starts afresh.
    idle_.clear();
    for (auto& f : fibers_) f->start(&Runner::worker), idle_.push_back(f.get());
  }
  if (has_new_reports()) fail_sticky(error_of_first_new_report());
  ++totals.launches;
  call_ = nullptr;
}

void run_launch(const KernelCall& call, dim3 grid, dim3 block, std::size_t shared_bytes) {
  runner().run(call, grid, block, shared_bytes);
}

void kill_launch() { runner().kill(); }

std::string describe_thread(unsigned tid) {
  const uint3 i = runner().index_of(tid);
  return format("(%u,%u,%u)", i.x, i.y, i.z);
}

std::string describe_launch() {
  const Runner& r = runner();
  if (r.call_ == nullptr) return "no kernel";
  return format("block (%u,%u,%u) of %s", r.block_index.x, r.block_index.y, r.block_index.z,
                describe_function(r.call_->function).c_str());
}

std::string describe_shared(std::size_t offset) {
  for (const SharedArray& a : runner().shared_) {
    if (offset + kSharedGap / 2 < a.offset || offset >= a.offset + a.bytes + kSharedGap / 2) continue;
    return format("byte %td of shared '%s', %zu bytes",
                  static_cast<std::ptrdiff_t>(offset) - static_cast<std::ptrdiff_t>(a.offset), a.name,
                  a.bytes);
  }
  return "shared memory";
}

}  // namespace needle::cuda::emu
