// Streams as chains of operations. In deferred mode (the default) an operation runs only when something waits
// for it, directly or through an event or the legacy stream: what a program forgets to wait for has then not
// happened yet.
#pragma once

#include <chrono>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "cuda_emu/internal.h"

namespace needle::cuda::emu {

/// A piece of work of a stream, and what comes before it.
struct Op {
  std::function<void()> run;
  std::vector<std::shared_ptr<Op>> after;
  bool done = false;
};
using OpPtr = std::shared_ptr<Op>;

}  // namespace needle::cuda::emu

struct CUgraph_st {
  std::vector<std::function<void()>> work;  // in the order of capture (one stream: a chain)
};
struct CUgraphExec_st : CUgraph_st {};
struct CUstream_st {
  needle::cuda::emu::OpPtr last;
  bool blocking = true;
  CUgraph_st* capture = nullptr;  // work goes there instead of being done
  bool capture_failed = false;
};
struct CUevent_st {
  needle::cuda::emu::OpPtr op;  // null: never recorded (counts as complete)
  std::shared_ptr<std::chrono::steady_clock::time_point> time;
  bool timing = true;
};

namespace needle::cuda::emu {

/// The state of the emulated device's host side.
struct Runtime {
  cudaError_t sticky = cudaSuccess, last = cudaSuccess;
  CUstream_st legacy;
  // What handles stand for, by the handle.
  std::unordered_map<const CUstream_st*, std::unique_ptr<CUstream_st>> streams;
  std::unordered_map<const CUevent_st*, std::unique_ptr<CUevent_st>> events;
  std::unordered_map<const CUgraph_st*, std::shared_ptr<CUgraph_st>> graphs;  // executable ones too
  std::deque<OpPtr> pending;                                                  // in the order of submission
  std::map<const char*, std::size_t> pinned;
  std::map<const void*, std::size_t> dynamic_limit;
  std::uint64_t seed = 0;
  bool deferred = true;
  int sm = 80;

  Runtime() {
    if (const char* s = std::getenv("NEEDLE_EMU_SEED")) seed = std::strtoull(s, nullptr, 10);
    if (const char* s = std::getenv("NEEDLE_EMU_SM")) sm = std::atoi(s);
    if (const char* s = std::getenv("NEEDLE_EMU_DEFERRED")) deferred = std::atoi(s) != 0;
  }
};
Runtime& runtime();

inline constexpr std::size_t kStaticSharedLimit = 48 * 1024;
/// Bytes of shared memory that a block may have on request, by compute capability.
std::size_t optin_limit();
/// Remembers an error for cudaGetLastError().
cudaError_t remember(cudaError_t e);
/// The same, and reports it.
cudaError_t misuse(cudaError_t e, const std::string& text);
/// Calls that a capture forbids: they fail, and the capture with them.
bool forbidden_in_capture(CUstream_st* only, const char* what);
/// Runs the given operation and everything it depends on, in order of submission.
void complete(const OpPtr& target);
/// Runs everything.
void complete_all();
/// The stream behind a handle, or null.
CUstream_st* resolve(cudaStream_t stream);
OpPtr submit(CUstream_st* s, std::function<void()> run, OpPtr also_after = nullptr);

}  // namespace needle::cuda::emu
