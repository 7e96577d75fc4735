#include "cuda_emu/streams.h"

#include <utility>

namespace needle::cuda::emu {

Runtime& runtime() {
  static Runtime r;
  return r;
}

cudaError_t remember(cudaError_t e) {
  if (e != cudaSuccess && e != cudaErrorNotReady) runtime().last = e;
  return e;
}
cudaError_t misuse(cudaError_t e, const std::string& text) {
  report(Violation::api_misuse, text);
  return remember(e);
}

// Calls that a capture forbids: they fail, and the capture with them.
bool forbidden_in_capture(CUstream_st* only, const char* what) {
  bool found = false;
  for (const auto& [handle, s] : runtime().streams) {
    if (s->capture == nullptr || (only != nullptr && only != handle)) continue;
    s->capture_failed = found = true;
  }
  if (found)
    misuse(cudaErrorStreamCaptureUnsupported, std::string(what) + " while a stream is being captured");
  return found;
}

namespace {

void run_op(Op& op) {
  if (op.done) return;
  op.done = true;
  if (runtime().sticky == cudaSuccess && op.run) op.run();
  op.run = nullptr;
  op.after.clear();
}

}  // namespace

// Runs the given operation and everything it depends on, in order of submission.
void complete(const OpPtr& target) {
  if (target == nullptr || target->done) return;
  std::unordered_set<Op*> needed;
  std::vector<Op*> todo{target.get()};
  while (!todo.empty()) {
    Op* op = todo.back();
    todo.pop_back();
    if (op->done || !needed.insert(op).second) continue;
    for (const OpPtr& dep : op->after) todo.push_back(dep.get());
  }
  DeviceAccess open;
  for (const OpPtr& op : runtime().pending)
    if (needed.contains(op.get())) run_op(*op);
  std::erase_if(runtime().pending, [](const OpPtr& op) { return op->done; });
}

void complete_all() {
  Runtime& r = runtime();
  DeviceAccess open;
  if (r.seed == 0) {
    while (!r.pending.empty()) {
      OpPtr op = r.pending.front();
      r.pending.pop_front();
      run_op(*op);
    }
    return;
  }
  // Any order that respects the dependencies.
  std::uint64_t x = r.seed * 0x9e3779b97f4a7c15 + totals.launches;
  while (!r.pending.empty()) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    OpPtr op = r.pending[x % r.pending.size()];
    complete(op);
  }
}

CUstream_st* resolve(cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy) return &runtime().legacy;
  return runtime().streams.contains(stream) ? stream : nullptr;
}

OpPtr submit(CUstream_st* s, std::function<void()> run, OpPtr also_after) {
  Runtime& r = runtime();
  auto op = std::make_shared<Op>();
  if (s->capture != nullptr) {
    op->done = true;
    if (run) s->capture->work.push_back(std::move(run));
    return op;
  }
  op->run = std::move(run);
  auto depend = [&](const OpPtr& other) {
    if (other != nullptr && !other->done) op->after.push_back(other);
  };
  depend(s->last);
  depend(also_after);
  // The legacy default stream waits for all blocking streams and they wait for it.
  if (s == &r.legacy) {
    for (const auto& [handle, other] : r.streams)
      if (other->blocking) depend(other->last);
  } else if (s->blocking) {
    depend(r.legacy.last);
  }
  s->last = op;
  r.pending.push_back(op);
  if (!r.deferred || r.pending.size() > 4096) complete_all();
  return op;
}

}  // namespace needle::cuda::emu

using namespace needle::cuda::emu;
#define NEEDLE_LOCK std::lock_guard lock(mutex())

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  NEEDLE_LOCK;
  auto made = std::make_unique<CUstream_st>();
  made->blocking = (flags & cudaStreamNonBlocking) == 0;
  *stream = made.get();
  runtime().streams.emplace(*stream, std::move(made));
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  NEEDLE_LOCK;
  // Its work stays pending and still runs.
  if (runtime().streams.erase(stream) == 0)
    return misuse(cudaErrorInvalidResourceHandle, "cudaStreamDestroy: unknown stream");
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  NEEDLE_LOCK;
  CUstream_st* s = resolve(stream);
  if (s == nullptr) return misuse(cudaErrorInvalidResourceHandle, "cudaStreamSynchronize: unknown stream");
  if (forbidden_in_capture(s, "cudaStreamSynchronize")) return cudaErrorStreamCaptureUnsupported;
  ++totals.synchronizations;
  complete(s->last);
  return remember(runtime().sticky);
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  NEEDLE_LOCK;
  CUstream_st* s = resolve(stream);
  if (s == nullptr) return misuse(cudaErrorInvalidResourceHandle, "cudaStreamQuery: unknown stream");
  if (s->last == nullptr || s->last->done) return remember(runtime().sticky);
  complete(s->last);  // so that a polling loop ends
  return cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  NEEDLE_LOCK;
  CUstream_st* s = resolve(stream);
  if (s == nullptr || !runtime().events.contains(event))
    return misuse(cudaErrorInvalidResourceHandle, "cudaStreamWaitEvent: unknown stream or event");
  submit(s, nullptr, event->op);
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void* user_data) {
  return enqueue(stream, [=] { fn(user_data); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  NEEDLE_LOCK;
  auto made = std::make_unique<CUevent_st>();
  made->timing = (flags & cudaEventDisableTiming) == 0;
  *event = made.get();
  runtime().events.emplace(*event, std::move(made));
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  NEEDLE_LOCK;
  if (runtime().events.erase(event) == 0)
    return misuse(cudaErrorInvalidResourceHandle, "cudaEventDestroy: unknown event");
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  NEEDLE_LOCK;
  CUstream_st* s = resolve(stream);
  if (s == nullptr || !runtime().events.contains(event))
    return misuse(cudaErrorInvalidResourceHandle, "cudaEventRecord: unknown stream or event");
  event->time = std::make_shared<std::chrono::steady_clock::time_point>();
  event->op = submit(s, [time = event->time] { *time = std::chrono::steady_clock::now(); });
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  NEEDLE_LOCK;
  if (!runtime().events.contains(event))
    return misuse(cudaErrorInvalidResourceHandle, "cudaEventSynchronize: unknown event");
  if (event->op != nullptr && !event->op->done) ++totals.synchronizations;
  complete(event->op);
  return remember(runtime().sticky);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  NEEDLE_LOCK;
  if (!runtime().events.contains(event))
    return misuse(cudaErrorInvalidResourceHandle, "cudaEventQuery: unknown event");
  if (event->op == nullptr || event->op->done) return remember(runtime().sticky);
  complete(event->op);
  return cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t stop) {
  NEEDLE_LOCK;
  if (!runtime().events.contains(start) || !runtime().events.contains(stop) || !start->timing ||
      !stop->timing || !start->op || !stop->op)
    return misuse(cudaErrorInvalidResourceHandle, "cudaEventElapsedTime: event without time");
  if (!start->op->done || !stop->op->done) return cudaErrorNotReady;
  *ms = std::chrono::duration<float, std::milli>(*stop->time - *start->time).count();
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  NEEDLE_LOCK;
  CUstream_st* s = resolve(stream);
  if (s == nullptr || s == &runtime().legacy || s->capture != nullptr)
    return misuse(cudaErrorInvalidValue,
                  "cudaStreamBeginCapture: unknown stream, the default one, or captured already");
  const auto graph = std::make_shared<CUgraph_st>();
  runtime().graphs.emplace(s->capture = graph.get(), graph);
  s->capture_failed = false;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  NEEDLE_LOCK;
  CUstream_st* s = resolve(stream);
  *graph = nullptr;
  if (s == nullptr || s->capture == nullptr)
    return misuse(cudaErrorInvalidValue, "cudaStreamEndCapture: no capture");
  CUgraph_st* const g = std::exchange(s->capture, nullptr);
  if (s->capture_failed) {
    runtime().graphs.erase(g);
    return remember(cudaErrorStreamCaptureInvalidated);
  }
  *graph = g;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  NEEDLE_LOCK;
  CUstream_st* s = resolve(stream);
  if (s == nullptr) return misuse(cudaErrorInvalidResourceHandle, "cudaStreamIsCapturing: unknown stream");
  *status = s->capture == nullptr ? cudaStreamCaptureStatusNone
            : s->capture_failed   ? cudaStreamCaptureStatusInvalidated
                                  : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  NEEDLE_LOCK;
  if (!runtime().graphs.contains(graph))
    return misuse(cudaErrorInvalidValue, "cudaGraphInstantiate: unknown graph");
  const auto made = std::make_shared<CUgraphExec_st>(CUgraphExec_st{*graph});
  runtime().graphs.emplace(*exec = made.get(), made);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  NEEDLE_LOCK;
  CUstream_st* s = resolve(stream);
  if (s == nullptr || !runtime().graphs.contains(exec))
    return misuse(cudaErrorInvalidValue, "cudaGraphLaunch: unknown stream or graph");
  ++totals.graph_launches;
  for (const auto& run : exec->work) submit(s, run);
  return remember(runtime().sticky);
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  NEEDLE_LOCK;
  if (runtime().graphs.erase(graph) == 0)
    return misuse(cudaErrorInvalidValue, "cudaGraphDestroy: unknown graph");
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  NEEDLE_LOCK;
  if (runtime().graphs.erase(exec) == 0)
    return misuse(cudaErrorInvalidValue, "cudaGraphExecDestroy: unknown graph");
  return cudaSuccess;
}

}  // extern "C"
