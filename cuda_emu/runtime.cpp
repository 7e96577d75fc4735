// The host side: devices, memory, copies and launches.
#include <cstdlib>
#include <cstring>

#include "cuda_emu/scheduler.h"
#include "cuda_emu/streams.h"

namespace needle::cuda::emu {

Stats totals;

std::size_t optin_limit() {
  switch (runtime().sm) {
    case 75:
      return 64 * 1024;
    case 80:
    case 87:
      return 163 * 1024;
    case 86:
    case 89:
      return 99 * 1024;
    default:
      return 227 * 1024;
  }
}

namespace {

bool is_pinned(const void* p) {
  auto& m = runtime().pinned;
  auto it = m.upper_bound(static_cast<const char*>(p));
  if (it == m.begin()) return false;
  --it;
  return static_cast<const char*>(p) < it->first + it->second;
}

void do_copy(void* dst, const void* src, std::size_t n, bool to_device, bool from_device) {
  std::string why;
  if ((to_device && !range_is_live(dst, n, &why)) || (from_device && !range_is_live(src, n, &why))) {
    report(Violation::out_of_bounds, "copy: " + why);
    fail_sticky(cudaErrorIllegalAddress);
    return;
  }
  if (from_device && !to_device) {
    const std::size_t bad = shadow_first_uninitialized(src, n);
    if (bad < n) {
      report(Violation::uninitialized,
             format("copy to the host of %zu bytes: byte %zu, %s, was never written", n, bad,
                    describe_address(static_cast<const char*>(src) + bad).c_str()));
      fail_sticky(cudaErrorLaunchFailure);
    }
  }
  std::memmove(dst, src, n);
  if (to_device) from_device ? shadow_copy(dst, src, n) : shadow_mark_written(dst, n);
}

cudaError_t copy(void* dst, const void* src, std::size_t n, cudaMemcpyKind kind, CUstream_st* s, bool async) {
  if (runtime().sticky != cudaSuccess) return runtime().sticky;
  if (s == nullptr) return misuse(cudaErrorInvalidResourceHandle, "copy: unknown or destroyed stream");
  if (n == 0) return cudaSuccess;
  const bool to_device = is_device_pointer(dst), from_device = is_device_pointer(src);
  if (!async && forbidden_in_capture(nullptr, "a synchronous copy")) return cudaErrorStreamCaptureUnsupported;
  if (s->capture != nullptr && ((!to_device && !is_pinned(dst)) || (!from_device && !is_pinned(src)))) {
    forbidden_in_capture(s, "a copy from or to pageable memory");
    return cudaErrorStreamCaptureUnsupported;
  }
  const bool expected[][2] = {{false, false}, {true, false}, {false, true}, {true, true}};
  if (kind != cudaMemcpyDefault && (expected[kind][0] != to_device || expected[kind][1] != from_device))
    return misuse(cudaErrorInvalidValue,
                  format("copy: kind %d does not fit dst %s, src %s", kind, describe_address(dst).c_str(),
                         describe_address(src).c_str()));
  if ((to_device && !from_device && !is_pinned(src)) || (from_device && !to_device && !is_pinned(dst)))
    ++totals.pageable_copies;
  std::function<void()> run;
  if (async && to_device && !from_device && !is_pinned(src)) {
    // From pageable memory CUDA stages the bytes before it returns.
    auto staged =
        std::make_shared<std::vector<char>>(static_cast<const char*>(src), static_cast<const char*>(src) + n);
    run = [=] { do_copy(dst, staged->data(), n, true, false); };
  } else {
    run = [=] { do_copy(dst, src, n, to_device, from_device); };
  }
  const OpPtr op = submit(s, std::move(run));
  // To pageable memory, and without "Async", CUDA returns when the copy is done.
  if (!async || (!to_device && !is_pinned(dst))) complete(op);
  return remember(runtime().sticky);
}

cudaError_t fill(void* p, int value, std::size_t n, CUstream_st* s) {
  if (runtime().sticky != cudaSuccess) return runtime().sticky;
  if (s == nullptr) return misuse(cudaErrorInvalidResourceHandle, "memset: unknown or destroyed stream");
  if (n == 0) return cudaSuccess;
  std::string why;
  if (!range_is_live(p, n, &why)) return misuse(cudaErrorInvalidValue, "memset: " + why);
  submit(s, [=] {
    std::memset(p, value, n);
    shadow_mark_written(p, n);
  });
  return cudaSuccess;
}

}  // namespace

std::uint64_t seed() { return runtime().seed; }
void set_seed(std::uint64_t s) { runtime().seed = s; }
void set_deferred(bool d) {
  std::lock_guard lock(mutex());
  complete_all();
  runtime().deferred = d;
}
void mark_uninitialized_in_order(void* p, std::size_t bytes, cudaStream_t stream) {
  std::lock_guard lock(mutex());
  if (CUstream_st* s = resolve(stream)) submit(s, [=] { shadow_mark_uninitialized(p, bytes); });
}
cudaError_t sticky_error() { return runtime().sticky; }
int compute_capability() { return runtime().sm; }
void fail_sticky(cudaError_t e) {
  if (runtime().sticky == cudaSuccess) runtime().sticky = e;
}

std::size_t shared_limit_of(const void* function) {
  auto it = runtime().dynamic_limit.find(function);
  return it == runtime().dynamic_limit.end() ? kStaticSharedLimit : std::max(kStaticSharedLimit, it->second);
}

void clear_errors() {
  std::lock_guard lock(mutex());
  Runtime& r = runtime();
  for (const OpPtr& op : r.pending) op->done = true, op->run = nullptr, op->after.clear();
  r.pending.clear();
  r.sticky = r.last = cudaSuccess;
  take_reports();
}

Stats stats() {
  Stats s = totals;
  s.live_allocations = live_allocations();
  s.live_bytes = live_bytes();
  return s;
}

void mark_uninitialized(void* p, std::size_t bytes) {
  std::lock_guard lock(mutex());
  DeviceAccess open;
  std::memset(p, kPoison, bytes);
  shadow_mark_uninitialized(p, bytes);
}

cudaError_t enqueue(cudaStream_t stream, std::function<void()> run) {
  std::lock_guard lock(mutex());
  if (runtime().sticky != cudaSuccess) return runtime().sticky;
  CUstream_st* s = resolve(stream);
  if (s == nullptr) return misuse(cudaErrorInvalidResourceHandle, "unknown or destroyed stream");
  submit(s, std::move(run));
  return cudaSuccess;
}

cudaError_t malloc_device(void** ptr, std::size_t size) {
  std::lock_guard lock(mutex());
  if (runtime().sticky != cudaSuccess) return runtime().sticky;
  if (ptr == nullptr) return misuse(cudaErrorInvalidValue, "cudaMalloc: null");
  *ptr = nullptr;
  if (forbidden_in_capture(nullptr, "cudaMalloc")) return cudaErrorStreamCaptureUnsupported;
  if (size == 0) return cudaSuccess;
  ++totals.allocations;
  *ptr = allocate(size);
  return remember(*ptr == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t malloc_host(void** ptr, std::size_t size) {
  std::lock_guard lock(mutex());
  *ptr = std::aligned_alloc(64, (size + 63) / 64 * 64);
  if (*ptr == nullptr) return remember(cudaErrorMemoryAllocation);
  runtime().pinned[static_cast<char*>(*ptr)] = size;
  return cudaSuccess;
}

cudaError_t func_set_attribute(const void* func, cudaFuncAttribute attr, int value) {
  std::lock_guard lock(mutex());
  if (attr == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (value < 0 || static_cast<std::size_t>(value) > optin_limit()) return remember(cudaErrorInvalidValue);
    runtime().dynamic_limit[func] = static_cast<std::size_t>(value);
  }
  return cudaSuccess;
}

cudaError_t func_get_name(const char** name, const void* func) {
  std::lock_guard lock(mutex());
  *name = kernel_name(func);
  return cudaSuccess;
}

cudaError_t launch(std::unique_ptr<KernelCall> call, dim3 grid, dim3 block, std::size_t shared_bytes,
                   cudaStream_t stream) {
  std::lock_guard lock(mutex());
  const std::shared_ptr<KernelCall> owner(std::move(call));
  if (runtime().sticky != cudaSuccess) return remember(runtime().sticky);
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024 || block.z > 64 || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
      grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535)
    return remember(cudaErrorInvalidConfiguration);
  if (shared_bytes > shared_limit_of(owner->function)) return remember(cudaErrorInvalidValue);
  CUstream_st* s = resolve(stream);
  if (s == nullptr) return misuse(cudaErrorInvalidResourceHandle, "launch: unknown or destroyed stream");
  submit(s, [=] { run_launch(*owner, grid, block, shared_bytes); });
  return remember(runtime().sticky);
}

}  // namespace needle::cuda::emu

using namespace needle::cuda::emu;
#define NEEDLE_LOCK std::lock_guard lock(mutex())

extern "C" {

const char* cudaGetErrorName(cudaError_t e) {
  switch (e) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInitializationError:
      return "cudaErrorInitializationError";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidMemcpyDirection:
      return "cudaErrorInvalidMemcpyDirection";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorInvalidDeviceFunction:
      return "cudaErrorInvalidDeviceFunction";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorAssert:
      return "cudaErrorAssert";
    case cudaErrorMisalignedAddress:
      return "cudaErrorMisalignedAddress";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorNotSupported:
      return "cudaErrorNotSupported";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorUnknown:
      return "cudaErrorUnknown";
  }
  return "unrecognized error code";
}
const char* cudaGetErrorString(cudaError_t e) { return cudaGetErrorName(e); }

cudaError_t cudaGetLastError() {
  NEEDLE_LOCK;
  const cudaError_t e = runtime().sticky != cudaSuccess ? runtime().sticky : runtime().last;
  runtime().last = cudaSuccess;
  return e;
}
cudaError_t cudaPeekAtLastError() {
  NEEDLE_LOCK;
  return runtime().sticky != cudaSuccess ? runtime().sticky : runtime().last;
}

cudaError_t cudaGetDeviceCount(int* count) {
  // What begins here ends after all that is built on it, at the end of the program too.
  runtime();
  runner();
  return *count = 1, cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return remember(device == 0 ? cudaSuccess : cudaErrorInvalidDevice); }
cudaError_t cudaDriverGetVersion(int* v) { return *v = 13000, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* v) { return *v = 13000, cudaSuccess; }

cudaError_t cudaDeviceSynchronize() {
  NEEDLE_LOCK;
  if (forbidden_in_capture(nullptr, "cudaDeviceSynchronize")) return cudaErrorStreamCaptureUnsupported;
  ++totals.synchronizations;
  complete_all();
  check_canaries();
  return remember(runtime().sticky);
}

cudaError_t cudaDeviceReset() {
  NEEDLE_LOCK;
  clear_errors();
  free_everything();
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attr, int device) {
  if (device != 0) return remember(cudaErrorInvalidDevice);
  switch (attr) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = 1024;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(kStaticSharedLimit);
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(optin_limit());
      break;
    case cudaDevAttrWarpSize:
      *value = 32;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = 2;
      break;  // few, so that grid-stride loops loop
    case cudaDevAttrComputeCapabilityMajor:
      *value = runtime().sm / 10;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = runtime().sm % 10;
      break;
    default:
      return remember(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (device != 0) return remember(cudaErrorInvalidDevice);
  *p = {};
  std::snprintf(p->name, sizeof p->name, "needle emulated CUDA device (sm_%d)", runtime().sm);
  p->totalGlobalMem = memory_limit();
  p->sharedMemPerBlock = kStaticSharedLimit;
  p->sharedMemPerBlockOptin = optin_limit();
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024, p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->multiProcessorCount = 2;
  p->maxThreadsPerMultiProcessor = 1024;
  p->major = runtime().sm / 10, p->minor = runtime().sm % 10;
  return cudaSuccess;
}

cudaError_t cudaFree(void* ptr) {
  NEEDLE_LOCK;
  if (forbidden_in_capture(nullptr, "cudaFree")) return cudaErrorStreamCaptureUnsupported;
  complete_all();  // cudaFree waits for the device
  if (ptr == nullptr) return cudaSuccess;
  if (!deallocate(ptr))
    return misuse(cudaErrorInvalidValue, "cudaFree: not a live allocation: " + describe_address(ptr));
  return runtime().sticky;
}
cudaError_t cudaFreeAsync(void* ptr, cudaStream_t stream) {
  return enqueue(stream, [=] {
    if (ptr != nullptr && !deallocate(ptr))
      misuse(cudaErrorInvalidValue, "cudaFreeAsync: not a live allocation: " + describe_address(ptr));
  });
}
cudaError_t cudaFreeHost(void* ptr) {
  NEEDLE_LOCK;
  complete_all();
  if (ptr == nullptr) return cudaSuccess;
  if (runtime().pinned.erase(static_cast<char*>(ptr)) == 0)
    return misuse(cudaErrorInvalidValue, "cudaFreeHost: not from cudaMallocHost");
  std::free(ptr);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  NEEDLE_LOCK;
  *total_bytes = memory_limit();
  *free_bytes = *total_bytes - live_bytes();
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* dst, const void* src, std::size_t n, cudaMemcpyKind kind) {
  NEEDLE_LOCK;
  return copy(dst, src, n, kind, &runtime().legacy, false);
}
cudaError_t cudaMemcpyAsync(void* dst, const void* src, std::size_t n, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  NEEDLE_LOCK;
  return copy(dst, src, n, kind, resolve(stream), true);
}
cudaError_t cudaMemcpy2DAsync(void* dst, std::size_t dpitch, const void* src, std::size_t spitch,
                              std::size_t width, std::size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  NEEDLE_LOCK;
  if (width > dpitch || width > spitch)
    return misuse(cudaErrorInvalidValue, "cudaMemcpy2DAsync: width exceeds pitch");
  for (std::size_t y = 0; y < height; ++y) {
    const cudaError_t e =
        copy(static_cast<char*>(dst) + y * dpitch, static_cast<const char*>(src) + y * spitch, width, kind,
             resolve(stream), true);
    if (e != cudaSuccess) return e;
  }
  return cudaSuccess;
}
cudaError_t cudaMemset(void* p, int value, std::size_t n) {
  NEEDLE_LOCK;
  return fill(p, value, n, &runtime().legacy);
}
cudaError_t cudaMemsetAsync(void* p, int value, std::size_t n, cudaStream_t stream) {
  NEEDLE_LOCK;
  return fill(p, value, n, resolve(stream));
}

}  // extern "C"
