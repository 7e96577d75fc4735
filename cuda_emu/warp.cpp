// Lanes of a warp that meet (shuffles, votes, tensor cores), and asynchronous copies.
#include <cstring>

#include "cuda_emu/scheduler.h"

namespace needle::cuda::emu {

// skip: lanes that need not be made ready.
void Runner::complete_if_all_came(Warp& warp, unsigned warp_number, Rendezvous& r, unsigned skip) {
  if ((r.mask & warp.live & ~r.arrived) != 0) return;
  r.complete = true;
  if (r.op == WarpOp::sync) ++warp.epoch;
  if (r.together != nullptr) {  // the operands lie on the stacks of the waiting lanes
    if (r.arrived == ~0u) {
      r.together(r.value);
    } else if (!misuse_reported_) {
      misuse_reported_ = true;
      report(Violation::warp_misuse,
             format("%s in %s:%d needs all 32 lanes, only %08x came; %s", kWarpOpName[static_cast<int>(r.op)],
                    r.file, r.line, r.arrived, describe_launch().c_str()));
    }
  }
  for (unsigned lanes = r.arrived & ~skip; lanes != 0; lanes &= lanes - 1)
    make_ready(warp_number * 32 + static_cast<unsigned>(__builtin_ctz(lanes)));
}

std::uint64_t Runner::warp_op(WarpOp op, unsigned mask, std::uint64_t value, int operand, int width,
                              const char* file, int line, WarpFunction* together) {
  const unsigned tid = running_, lane = tid % 32;
  Warp& warp = warps_[tid / 32];
  ++totals.warp_ops;
  auto misuse = [&](const std::string& what) {
    if (misuse_reported_) return;
    misuse_reported_ = true;
    report(Violation::warp_misuse,
           format("%s in %s:%d by thread %s: %s; %s", kWarpOpName[static_cast<int>(op)], file, line,
                  describe_thread(tid).c_str(), what.c_str(), describe_launch().c_str()));
  };
  if (((mask >> lane) & 1) == 0) {
    misuse(format("lane %u is not in its own mask %08x", lane, mask));
    kill();
  }
  Rendezvous* r = nullptr;
  for (unsigned i = 0; i < warp.slots; ++i) {
    Rendezvous& m = warp.meetings[i];
    if (m.arrived != 0 && !m.complete && m.op == op && m.mask == mask) {
      r = &m;
      break;
    }
    if (r == nullptr && m.idle()) r = &m;  // free slot, unless a matching meeting follows
  }
  if (r == nullptr) {
    r = &warp.meetings[warp.slots++];
    r->arrived = r->left = 0;
  }
  if (r->idle()) {  // first lane: a new meeting
    r->op = op;
    r->mask = mask;
    r->arrived = r->left = 0;
    r->complete = false;
    r->together = together;
    r->file = file;
    r->line = line;
  }
  if (together != nullptr && (r->line != line || std::strcmp(r->file, file) != 0))
    misuse(format("other lanes of the warp are at %s:%d: this instruction is for the whole warp at once",
                  r->file, r->line));
  r->value[lane] = value;
  r->arrived |= 1u << lane;
  Thread& t = threads_[tid];
  t.rendezvous = r;
  // In order, the last lane goes on at once; in random order it queues up with the others.
  complete_if_all_came(warp, tid / 32, *r, random_ ? 0 : 1u << lane);
  if (!r->complete) {
    wait(Status::at_warp_op, file, line);
  } else if (random_) {
    t.fiber->suspend();
  }
  exec.warp_epoch = warp.epoch;

  std::uint64_t result = 0;
  if (op == WarpOp::ballot) {
    for (unsigned l = 0; l < 32; ++l)
      if (((r->arrived >> l) & 1) && r->value[l] != 0) result |= std::uint64_t{1} << l;
  } else if (op != WarpOp::sync && together == nullptr) {
    const int me = static_cast<int>(lane), base = me / width * width;
    int source = me;
    switch (op) {
      case WarpOp::shfl:
        source = base + (operand & (width - 1));
        break;
      case WarpOp::shfl_up:
        source = me - operand < base ? me : me - operand;
        break;
      case WarpOp::shfl_down:
        source = me + operand >= base + width ? me : me + operand;
        break;
      default:
        source = (me ^ operand) >= base + width ? me : me ^ operand;
        break;
    }
    if (((r->arrived >> source) & 1) != 0) {
      result = r->value[source];
    } else {
      misuse(format("reads lane %d, which does not take part (mask %08x, taking part %08x)", source, mask,
                    r->arrived));
      result = ~std::uint64_t{0};
    }
  }
  r->left |= 1u << lane;
  return result;
}

// The bytes have been read from global memory.  Until the group is waited for, the destination counts as
// not written; it changes when the thread waits.
void Runner::async_copy(void* shared, const void* bytes, unsigned size, const void* pc) {
  AsyncCopies& mine = async_[running_];
  AsyncCopy& c = mine.pending.emplace_back();
  c.to = static_cast<char*>(shared), c.size = size, c.group = mine.groups, c.pc = pc;
  std::memcpy(c.bytes, bytes, size);
  check_write(&exec, c.to, size, pc);  // does somebody still read the old contents?
  std::memset(c.to, kPoison, size);
  shadow_mark_unwritten(c.to, size);
}

void Runner::async_wait(std::size_t newest) {
  AsyncCopies& mine = async_[running_];
  while (!mine.pending.empty() && mine.pending.front().group + newest < mine.groups) {
    const AsyncCopy& c = mine.pending.front();
    check_write(&exec, c.to, c.size, c.pc);
    std::memcpy(c.to, c.bytes, c.size);
    mine.pending.pop_front();
  }
}

}  // namespace needle::cuda::emu
