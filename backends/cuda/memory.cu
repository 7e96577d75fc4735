// The device: its memory, its stream, and what is noticed when the host waits for it.
#include <cstdlib>
#include <cstring>
#include <limits>

#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/device_code.h"

namespace needle {

using cuda::Failure;

namespace {

int compute_capability(int index) {
  int major = 0, minor = 0;
  NEEDLE_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
  NEEDLE_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index));
  return 10 * major + minor;
}

/// Bytes that are free, and all bytes, of the device of this thread's calls.
std::pair<std::size_t, std::size_t> memory_of_device() {
  std::size_t free = 0, total = 0;
  NEEDLE_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return {free, total};
}

std::string describe(int index) {
  cudaDeviceProp properties;
  NEEDLE_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  std::ostringstream text;
  text << properties.name << ", compute capability " << properties.major << '.' << properties.minor;
  return text.str();
}

cuda::Blas make_blas(cudaStream_t stream) {
  cublasHandle_t handle = nullptr;
  cuda::check(cublasCreate(&handle), "cublasCreate");
  cuda::Blas blas(handle);
  cuda::check(cublasSetStream(handle, stream), "cublasSetStream");
  return blas;
}

/// Makes `index` the device of the calls that follow on this thread, and passes it on.
int used(int index) {
  NEEDLE_CUDA_CHECK(cudaSetDevice(index));
  return index;
}

constexpr int kCheckThreads = 1024;

struct Wanted {
  Failure::Kind kind;
  const char* op;
  std::int64_t size, except, first_position;
};

/// The first element that lies outside of [0, size) and is not `except`; one block.
__global__ void __launch_bounds__(kCheckThreads)
    check_kernel(const std::int64_t* values, MergedAxes<1> axes, Wanted wanted, Failure* failure) {
  NEEDLE_SHARED(std::int64_t, scratch, [32]);
  std::int64_t first = axes.count;
  for (std::int64_t i = threadIdx.x; i < axes.count && first == axes.count; i += kCheckThreads) {
    const std::int64_t value = values[cuda::offsets_of(axes, i)[0]];
    if ((value < 0 || value >= wanted.size) && value != wanted.except) first = i;
  }
  first = cuda::block_reduce(first, scratch, Min{});
  if (threadIdx.x != 0 || first == axes.count || failure->kind != Failure::Kind::none) return;
  *failure = {
      wanted.kind, wanted.op,    wanted.first_position + first, values[cuda::offsets_of(axes, first)[0]],
      wanted.size, wanted.except};
}

}  // namespace

void cuda::tell(const Failure& failure) {
  switch (failure.kind) {
    case Failure::Kind::label:
      fail(failure.op, ": label ", failure.value, " at row ", failure.position, " is outside [0, ",
           failure.size, ") and is not the ignore index ", failure.except);
    case Failure::Kind::zero_divisor:
      fail(failure.op, ": a whole number is divided by zero");
    default:
      fail(failure.op, ": index ", failure.value, " at position ", failure.position, " is outside [0, ",
           failure.size, ")");
  }
}

CudaDevices find_cuda_devices() {
  CudaDevices devices;
  const cudaError_t error = cudaGetDeviceCount(&devices.count);
  if (error == cudaSuccess) return devices;
  (void)cudaGetLastError();
  devices.count = 0;
  int driver = 0, runtime = 0;
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
  devices.reason = why_no_devices(error, driver, runtime);
  return devices;
}

std::string why_no_devices(int error, int driver, int runtime) {
  const auto version = [](int number) {
    return std::to_string(number / 1000) + '.' + std::to_string(number % 1000 / 10);
  };
  if (driver == 0) return "no NVIDIA driver was found";
  if (error == cudaErrorInsufficientDriver)
    return "the NVIDIA driver is too old: it has CUDA " + version(driver) + ", and this program wants " +
           version(runtime);
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}

MemoryPool CudaBackend::make_pool(MemoryPool::Fit fit) {
  return MemoryPool(
      [this, fit](std::size_t bytes) -> void* {
        use();
        const auto ask = [&] {
          void* block = nullptr;
          const cudaError_t error = cudaMalloc(&block, bytes);
          if (error == cudaSuccess) return block;
          (void)cudaGetLastError();
          if (error != cudaErrorMemoryAllocation) cuda::check(error, "cudaMalloc");
          return static_cast<void*>(nullptr);
        };
        if (void* const block = ask()) return block;
        // Perhaps the other pool keeps what is lacking; recordings refer to what theirs keeps.
        MemoryPool& other = fit == MemoryPool::Fit::exact ? pool_ : recording_pool_;
        if (other.stats().cached == 0 || (&other == &recording_pool_ && recordings_ > 0)) return nullptr;
        other.free_cached();
        return ask();
      },
      [this](void* block) {
        (void)cudaSetDevice(index_);
        (void)cudaFree(block);
      },
      [this] {
        std::ostringstream text;
        text << "; " << name() << " has " << free_memory() << " of " << total_memory_ << " bytes free";
        return text.str();
      },
      [this]([[maybe_unused]] void* block, [[maybe_unused]] std::size_t bytes) {
#ifdef NEEDLE_CUDA_EMULATED
        // So that whoever reads from the next array in its place what was never written there is found.
        cuda::emu::mark_uninitialized_in_order(block, bytes, stream_.get());
#endif
      },
      fit);
}

namespace {

template <class T>
std::unique_ptr<T, cuda::Destroy<cudaFree>> on_device(std::size_t count) {
  T* data = nullptr;
  NEEDLE_CUDA_CHECK(cudaMalloc(&data, count * sizeof(T)));
  return std::unique_ptr<T, cuda::Destroy<cudaFree>>(data);
}
/// A T of zero bytes in the device's memory.
template <class T>
std::unique_ptr<T, cuda::Destroy<cudaFree>> zero_on_device(cudaStream_t stream) {
  auto owned = on_device<T>(1);
  NEEDLE_CUDA_CHECK(cudaMemsetAsync(owned.get(), 0, sizeof(T), stream));
  return owned;
}

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value && *value && std::string_view(value) != "0";
}

/// What NVIDIA gives cuBLAS for the newest devices; a recorded product must not ask for its own.
constexpr std::size_t kBlasWorkspace = std::size_t{32} << 20;

}  // namespace

CudaBackend::CudaBackend(int index)
    : index_(used(index)),
      description_(describe(index)),
      compute_capability_(compute_capability(index)),
      waits_after_launches_(is_set("NEEDLE_CUDA_SYNC")),
      stream_(cuda::make_stream()),
      blas_(make_blas(stream_.get())),
      pool_(make_pool(MemoryPool::Fit::near)),
      recording_pool_(make_pool(MemoryPool::Fit::exact)),
      total_memory_(memory_of_device().second),
      failure_(zero_on_device<Failure>(stream_.get())),
      moved_(zero_on_device<std::uint64_t>(stream_.get())) {
  Failure* seen = nullptr;
  NEEDLE_CUDA_CHECK(cudaMallocHost(&seen, sizeof(Failure)));
  seen_failure_.reset(seen);
  blas_workspace_ = {pool_.allocate(kBlasWorkspace),
                     [this](void* block) { pool_.release(block, kBlasWorkspace); }};
  cuda::check(cublasSetWorkspace(blas_.get(), blas_workspace_.get(), kBlasWorkspace), "cublasSetWorkspace");
  const bool tf32 = is_set("NEEDLE_CUDA_TF32");
  // Long sums that are split must not be put together in 16 bits.
  const int mode = (tf32 ? CUBLAS_TF32_TENSOR_OP_MATH : CUBLAS_DEFAULT_MATH) |
                   CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
  cuda::check(cublasSetMathMode(blas_.get(), static_cast<cublasMath_t>(mode)), "cublasSetMathMode");
  if (tf32) {
    description_ += ", products of f32 in TF32";
  }
}

CudaBackend::~CudaBackend() { (void)cudaStreamSynchronize(stream_.get()); }

std::string CudaBackend::name() const { return "cuda:" + std::to_string(index_); }
std::string CudaBackend::description() const { return description_; }
std::string CudaBackend::description(DType operands) const {
  return description_ + ", " + std::string(name_of(operands)) + " by cuBLAS";
}

void CudaBackend::use() const { NEEDLE_CUDA_CHECK(cudaSetDevice(index_)); }

bool CudaBackend::is_emulated() const {
#ifdef NEEDLE_CUDA_EMULATED
  return true;
#else
  return false;
#endif
}

void* CudaBackend::allocate(std::size_t bytes) { return pool().allocate(bytes); }
void CudaBackend::release(void* data, std::size_t bytes) {
  (recording_pool_.owns(data) ? recording_pool_ : pool_).release(data, bytes);
}
MemoryStats CudaBackend::memory_stats() const {
  const MemoryStats a = pool_.stats(), b = recording_pool_.stats();
  return {a.live + b.live, a.peak + b.peak, a.cached + b.cached, a.system_allocations + b.system_allocations};
}
std::size_t CudaBackend::total_memory() const { return total_memory_; }
std::size_t CudaBackend::free_memory() const {
  use();
  return memory_of_device().first;
}
void CudaBackend::trim_memory() {
  synchronize();  // kernels that were launched may still use what is cached
  pool_.trim();
  if (recordings_ == 0) recording_pool_.trim();
}

void CudaBackend::copy_from_host(const void* host, void* data, std::size_t bytes) {
  const std::lock_guard lock(copying_);
  use();
  require_no_capture("a copy from the host");
  constexpr std::size_t kAlignment = 16;
  for (std::size_t done = 0; done < bytes;) {
    // A buffer is filled by many copies, and waited for only when it comes to its turn again.
    if (staged_ == cuda::PinnedBuffer::kBytes) {
      NEEDLE_CUDA_CHECK(cudaEventRecord(staging_[staging_turn_].free(), stream_.get()));
      staging_turn_ = (staging_turn_ + 1) % staging_.size();
      NEEDLE_CUDA_CHECK(cudaEventSynchronize(staging_[staging_turn_].free()));
      staged_ = 0;
    }
    const std::size_t now = std::min(bytes - done, cuda::PinnedBuffer::kBytes - staged_);
    char* const place = static_cast<char*>(staging_[staging_turn_].data()) + staged_;
    std::memcpy(place, static_cast<const char*>(host) + done, now);
    NEEDLE_CUDA_CHECK(
        cudaMemcpyAsync(static_cast<char*>(data) + done, place, now, cudaMemcpyHostToDevice, stream_.get()));
    done += now;
    staged_ =
        std::min((staged_ + now + kAlignment - 1) / kAlignment * kAlignment, cuda::PinnedBuffer::kBytes);
  }
}

void CudaBackend::copy_to_host(const void* data, void* host, std::size_t bytes) {
  const std::lock_guard lock(copying_);
  use();
  std::size_t done = 0;
  require_no_capture("a copy to the host");
  if (bytes == 0) return finish("a copy to the host");  // there may be no memory at either end
  while (done < bytes) {
    const std::size_t now = std::min(bytes - done, cuda::PinnedBuffer::kBytes);
    NEEDLE_CUDA_CHECK(cudaMemcpyAsync(arriving_.data(), static_cast<const char*>(data) + done, now,
                                      cudaMemcpyDeviceToHost, stream_.get()));
    finish("a copy to the host");
    std::memcpy(static_cast<char*>(host) + done, arriving_.data(), now);
    done += now;
  }
}

void CudaBackend::synchronize() {
  const std::lock_guard lock(copying_);
  use();
  finish("synchronize()");
}

void CudaBackend::require_no_capture(const char* what) const {
  require(!captures_, "cuda: ", what, " is not possible in a step that is being recorded");
}

void CudaBackend::finish(const char* where) {
  require_no_capture("a wait for the device");
  NEEDLE_CUDA_CHECK(cudaMemcpyAsync(seen_failure_.get(), failure_.get(), sizeof(Failure),
                                    cudaMemcpyDeviceToHost, stream_.get()));
  const cudaError_t error = cudaStreamSynchronize(stream_.get());
  if (error != cudaSuccess) {
    throw DeviceError(name() + ": seen when the host waited for it, in " + where + ": " + cudaGetErrorName(error) + ", " +
                      cudaGetErrorString(error) +
                      "; the work that failed came before, and NEEDLE_CUDA_SYNC=1 names it");
  }
  if (seen_failure_->kind == Failure::Kind::none) return;
  NEEDLE_CUDA_CHECK(cudaMemsetAsync(failure_.get(), 0, sizeof(Failure), stream_.get()));
  cuda::tell(*seen_failure_);
}

void CudaBackend::wait_for_kernel(const void* kernel) {
  if (captures_) return;
  const char* its_name = "cuBLAS product";
  if (kernel && cudaFuncGetName(&its_name, kernel) != cudaSuccess) its_name = "of unknown name";
  const cudaError_t error = cudaStreamSynchronize(stream_.get());
  if (error == cudaSuccess) return;
  throw DeviceError(name() + ": kernel " + its_name + " failed: " + cudaGetErrorString(error));
}

void CudaBackend::check_indices(const char* op, const View& index, std::int64_t size) {
  if (index.count() == 0) return;
  run(check_kernel, {dim3(1), dim3(kCheckThreads)}, index.as<std::int64_t>(), MergedAxes<1>({index}),
      Wanted{Failure::Kind::index, op, size, std::numeric_limits<std::int64_t>::min(), 0}, failure_.get());
}

void CudaBackend::check_labels(const CrossEntropySettings& settings, const View& labels,
                               std::int64_t classes) {
  if (labels.count() == 0) return;
  run(check_kernel, {dim3(1), dim3(kCheckThreads)}, labels.as<std::int64_t>(), MergedAxes<1>({labels}),
      Wanted{Failure::Kind::label, "cross_entropy", classes, settings.ignore_index, settings.first_row},
      failure_.get());
}

}  // namespace needle
