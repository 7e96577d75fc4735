// Work that is recorded as a CUDA graph and replayed.
#include "backends/cuda/cuda_backend.h"

namespace needle {

/// Runs work twice, once to fill its memory and once to record it, and then replays it.
class CudaRecording final : public Recording {
 public:
  explicit CudaRecording(CudaBackend& backend) : backend_(backend) { ++backend_.recordings_; }
  ~CudaRecording() override {
    (void)cudaStreamSynchronize(backend_.stream_.get());
    --backend_.recordings_;
  }

  bool run(const std::function<void()>& work, std::uint64_t moved) override {
    backend_.use();
    if (graph_) {
      move_streams(moved);
      replay();
      move_streams(0);
      return false;
    }
    // In memory of its own, which nobody gets in between.
    const Recorded recorded(backend_.records_);
    if (!is_warm_) {
      work();
      is_warm_ = true;
      return true;
    }
    const cudaStream_t stream = backend_.stream_.get();
    const Recorded capturing(backend_.captures_);
    NEEDLE_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    try {
      work();
    } catch (...) {
      cudaGraph_t half = nullptr;
      (void)cudaStreamEndCapture(stream, &half);
      if (half) (void)cudaGraphDestroy(half);
      (void)cudaGetLastError();
      throw;
    }
    cudaGraph_t graph = nullptr;
    NEEDLE_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    const cuda::Graph owned(graph);
    cudaGraphExec_t executable = nullptr;
    NEEDLE_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
    graph_.reset(executable);
    replay();
    return true;
  }

 private:
  /// A flag that is set for a scope.
  struct Recorded {
    explicit Recorded(bool& flag) : flag_(flag) { flag_ = true; }
    ~Recorded() { flag_ = false; }
    bool& flag_;
  };

  void replay() { NEEDLE_CUDA_CHECK(cudaGraphLaunch(graph_.get(), backend_.stream_.get())); }
  void move_streams(std::uint64_t by) { backend_.copy_from_host(&by, backend_.moved_.get(), sizeof(by)); }

  CudaBackend& backend_;
  bool is_warm_ = false;
  cuda::ExecutableGraph graph_;
};

std::unique_ptr<Recording> CudaBackend::new_recording() { return std::make_unique<CudaRecording>(*this); }

}  // namespace needle
