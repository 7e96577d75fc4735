// The CUDA backend: cuBLAS products and kernels of our own. Each .cu file of this folder defines the methods
// of one subject, beside the file of that name for the CPU. float64 is storage here: it is copied and
// converted, computed on the CPU alone.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "backends/backend.h"
#include "backends/cuda/failure.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/resources.h"
#include "backends/scratch.h"

namespace needle {

/// How many CUDA devices this process may use; 0, and the reason, where there are none.
struct CudaDevices {
  int count = 0;
  std::string reason;
};
CudaDevices find_cuda_devices();
/// Why there are none, given the runtime's error and the versions of CUDA (1000 major + 10 minor) that driver
/// (0: there is none) and runtime have.
std::string why_no_devices(int error, int driver, int runtime);

namespace cuda {

/// Refuses an array that is computed in float64, and names the way out.
inline void require_no_float64(const char* op, DType dtype) {
  require(dtype != DType::f64, op,
          ": wants f32, bf16 or f16 on cuda, got f64; compute it on the CPU, as in x.to(cpu())");
}

/// Calls function(TypeTag) for the type that arithmetic on `dtype` is done in: float, a whole number or bool.
template <class F>
void dispatch_arithmetic(const char* op, DType dtype, const F& function) {
  require_no_float64(op, dtype);
  dispatch(dtype, [&](auto tag) {
    using T = Arithmetic<typename decltype(tag)::type>;
    if constexpr (!std::is_same_v<T, double>) function(TypeTag<T>{});
  });
}

/// Throws unless `dtype` is f32.
inline void require_float32(const char* op, DType dtype) {
  require_no_float64(op, dtype);
  require(dtype == DType::f32, op, ": wants f32, got ", name_of(dtype));
}

}  // namespace cuda

/// Kernels on one CUDA device, in the order of their calls on a stream of its own. Calls return before their
/// work is done; copy_to_host() and synchronize() wait, and throw what went wrong until then.
class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(int index);
  ~CudaBackend() override;
  std::string name() const override;
  std::string description() const override;
  std::string description(DType operands) const override;
  void* allocate(std::size_t bytes) override;
  void release(void* data, std::size_t bytes) override;
  MemoryStats memory_stats() const override;
  std::size_t total_memory() const override;
  std::size_t free_memory() const override;
  void trim_memory() override;
  void copy_from_host(const void* host, void* data, std::size_t bytes) override;
  void copy_to_host(const void* data, void* host, std::size_t bytes) override;
  void synchronize() override;
  bool runs_ahead() const override { return true; }
  bool is_emulated() const override;
  std::unique_ptr<Recording> new_recording() override;
  void copy(const View& x, const View& y) override;
  void fill(double value, const View& y) override;
  void arange(double start, double step, const View& y) override;
  void unary(const UnaryOp& op, const View& x, const View& y) override;
  void binary(const BinaryOp& op, const View& a, const View& b, const View& y) override;
  void select(const View& condition, const View& a, const View& b, const View& y) override;
  void random(const Distribution& distribution, PhiloxStream stream, const View& y) override;
  void dropout(double p, PhiloxStream stream, const View& x, const View& residual, const View& y) override;
  void reduce(const ReduceOp& op, const View& x, const View& y) override;
  void argmax(const View& x, const View& y) override;
  void top_k(const View& x, const View& values, const View& indices) override;
  void cumulative_sum(const View& x, int axis, const View& y) override;
  void matmul(const View& a, const View& b, const View& y, bool accumulate) override;
  void linear(Epilogue epilogue, const View& x, const View& weight, const View& bias, const View& residual,
              const View& y, const View& slope) override;
  void linear_int8(Epilogue epilogue, const View& x, const View& weight, const View& scale, const View& bias,
                   const View& residual, const View& y) override;
  void epilogue_gradient(const View& slope, const View& g, const View& product,
                         const GradientPlace& dbias) override;
  void gather_rows(const View& table, const View& rows, const View& y) override;
  void scatter_add_rows(const View& x, const View& rows, const View& table) override;
  void gather(const View& x, int axis, const View& index, const View& y) override;
  void scatter_add(const View& x, int axis, const View& index, const View& y) override;
  void softmax(SoftmaxForm form, const View& x, const View& y) override;
  void softmax_gradient(SoftmaxForm form, const View& y, const View& dy, const View& dx) override;
  void norm(NormKind kind, double epsilon, const View& x, const View& weight, const View& bias, const View& y,
            const View& mean, const View& inverse_deviation) override;
  void norm_gradient(NormKind kind, const View& x, const View& weight, const View& mean,
                     const View& inverse_deviation, const View& dy, const GradientPlace& dx,
                     const GradientPlace& dweight, const GradientPlace& dbias) override;
  void cross_entropy(const CrossEntropySettings& settings, const View& logits, const View& labels,
                     const View& losses) override;
  void cross_entropy_gradient(const CrossEntropySettings& settings, const View& logits, const View& labels,
                              const View& dlosses, const View& dlogits) override;
  void attention(const AttentionSettings& settings, const AttentionArrays& arrays) override;
  void attention_gradient(const AttentionSettings& settings, const AttentionArrays& arrays,
                          const AttentionGradients& gradients) override;
  void rotary(double base, bool interleaved, double direction, const View& positions, const View& x,
              const View& y) override;
  void recurrence(RecurrentCell cell, const RecurrentArrays& arrays) override;
  void recurrence_gradient(RecurrentCell cell, const RecurrentArrays& arrays,
                           const RecurrentGradients& gradients) override;
  void causal_convolution(std::int64_t dilation, Epilogue epilogue, const View& x, const View& weight,
                          const View& bias, const View& residual, const View& y, const View& slope) override;
  void causal_convolution_gradient(std::int64_t dilation, const View& x, const View& weight, const View& dy,
                                   const GradientPlace& dx, const GradientPlace& dweight) override;
  void clip(const ClippingSettings& settings, std::span<const View> gradients, const View& state) override;
  void adam(const AdamSettings& settings, std::span<const ParameterArrays> parameters,
            const View& state) override;
  void sgd(const SgdSettings& settings, std::span<const ParameterArrays> parameters,
           const View& state) override;

 private:
  /// Makes this backend's device the one that this thread's CUDA calls mean.
  void use() const;
  /// Launches a kernel on the stream: run(kernel, {grid, block, shared bytes}, arguments...).
  template <class... P, class... A>
  void run(void (*kernel)(P...), cuda::LaunchConfig config, A&&... arguments) {
    use();
    config.stream = stream_.get();
    cuda::launch(kernel, config, std::forward<A>(arguments)...);
    if (waits_after_launches_) wait_for_kernel(reinterpret_cast<const void*>(kernel));
  }
  /// Throws, naming the kernel, if it failed.
  void wait_for_kernel(const void* kernel);
  /// A loop over `count` elements, each thread taking some: kernel(arguments...) finds them by grid_index().
  template <class... P, class... A>
  void run_elements(void (*kernel)(P...), std::int64_t count, A&&... arguments) {
    constexpr std::int64_t kThreads = 256, kMostBlocks = 2048;
    const std::int64_t blocks = std::min(kMostBlocks, (count + kThreads - 1) / kThreads);
    run(kernel, {dim3(static_cast<unsigned>(blocks)), dim3(kThreads)}, std::forward<A>(arguments)...);
  }
  /// body(offsets of the views) for each of their elements.
  template <std::size_t N, class Body>
  void run_body(const std::array<View, N>& views, const Body& body);
  /// Memory for as long as the kernels run that are launched while it lives.
  template <class T>
  Scratch<T> scratch(std::int64_t count) {
    return Scratch<T>(pool(), static_cast<std::size_t>(count));
  }
  template <class Op, class T>
  void reduce_typed(Op op, const View& x, const View& y);
  /// body(index, word number, block) for each of `count` numbers of a stream.
  template <class Body>
  void run_random(PhiloxStream stream, std::int64_t count, const Body& body);
  /// y = a b, or y += a b, of matrices that cuBLAS takes as they lie.
  void product(const View& a, const View& b, const View& y, bool accumulate);
  /// An array of x's shape that cuBLAS takes, in memory that `owner` keeps; its elements are not set.
  View aligned_like(const View& x, DType dtype, std::deque<Scratch<char>>& owner);
  /// y = f(y + bias) + residual, and the slope, where they are wanted.
  void finish_linear(Epilogue function, const View& bias, const View& residual, const View& y,
                     const View& slope);
  /// gather() of indices that are checked elsewhere.
  void gather_along(const View& x, int axis, const View& index, const View& y);
  /// Has the next synchronisation throw where an index (i64) lies outside of [0, size); all but `except`.
  void check_indices(const char* op, const View& index, std::int64_t size);
  void check_labels(const CrossEntropySettings& settings, const View& labels, std::int64_t classes);
  /// The same calls for arrays of 16 bits, on tensor cores; false, with nothing done, where they have no
  /// kernel for the call.
  bool attention_on_tensor_cores(const AttentionSettings& settings, const AttentionArrays& arrays);
  bool attention_gradient_on_tensor_cores(const AttentionSettings& settings, const AttentionArrays& arrays,
                                          const AttentionGradients& gradients);
  /// Waits in `where`, and throws what went wrong until then.
  void finish(const char* where);

  friend class CudaRecording;
  /// Where memory comes from now.
  MemoryPool& pool() { return records_ ? recording_pool_ : pool_; }
  MemoryPool make_pool(MemoryPool::Fit fit);
  void require_no_capture(const char* what) const;

  int index_;
  std::string description_;
  int compute_capability_;     ///< 80 for 8.0
  bool waits_after_launches_;  ///< NEEDLE_CUDA_SYNC=1: a failure is seen at the kernel that failed
  bool records_ = false;       ///< memory comes from the recording's pool
  bool captures_ = false;      ///< calls are recorded, not done
  int recordings_ = 0;         ///< that may be replayed
  cuda::Stream stream_;
  cuda::Blas blas_;
  MemoryPool pool_, recording_pool_;  ///< the second keeps what recordings refer to apart
  std::unique_ptr<void, std::function<void(void*)>> blas_workspace_;  // of the pool
  std::mutex copying_;  // threads that copy share the buffers below
  std::size_t total_memory_;
  std::array<cuda::PinnedBuffer, 2> staging_;  ///< for what goes to the device, in turns
  std::size_t staging_turn_ = 0, staged_ = 0;  ///< whose turn it is, and bytes of it that are used
  cuda::PinnedBuffer arriving_;                ///< for what comes from it
  std::unique_ptr<cuda::Failure, cuda::Destroy<cudaFree>> failure_;  ///< in the device's memory
  std::unique_ptr<cuda::Failure, cuda::Destroy<cudaFreeHost>> seen_failure_;
  /// In the device's memory: by how much replayed random streams are moved.
  std::unique_ptr<std::uint64_t, cuda::Destroy<cudaFree>> moved_;
};

}  // namespace needle
