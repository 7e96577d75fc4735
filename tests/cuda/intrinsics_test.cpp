// Device built-ins and the runtime API.  The same expectations hold on the emulator and on a GPU, so
// running this file on a GPU is the test of the emulator.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/cuda/device_buffer.h"
#include "tests/cuda/intrinsics.h"

#if defined(NEEDLE_CUDA_EMULATED)
#include "cuda_emu/control.h"
#endif

namespace {

class Intrinsics : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
      (void)cudaGetLastError();
      GTEST_SKIP() << "no CUDA device";
    }
#if defined(NEEDLE_CUDA_EMULATED)
    needle::cuda::emu::set_seed(static_cast<std::uint64_t>(GetParam()));
#endif
  }
  void TearDown() override {
    if (IsSkipped()) return;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
#if defined(NEEDLE_CUDA_EMULATED)
    EXPECT_TRUE(needle::cuda::emu::take_reports().empty());
    needle::cuda::emu::clear_errors();
#endif
  }
};

TEST_P(Intrinsics, WarpOperations) {
  for (int n : {32, 96}) {
    DeviceBuffer<int> d(static_cast<std::size_t>(12 * n));
    intrinsics::warp_ops(d.get(), n);
    const std::vector<int> r = d.to_host();
    for (int t = 0; t < n; ++t) {
      const int lane = t % 32, base = t - lane;
      EXPECT_EQ(r[0 * n + t], base + 5);
      EXPECT_EQ(r[1 * n + t], base + lane / 8 * 8 + (lane + 1) % 8);
      EXPECT_EQ(r[2 * n + t], lane < 3 ? t : t - 3);
      EXPECT_EQ(r[3 * n + t], lane % 16 + 3 < 16 ? t + 3 : t);
      EXPECT_EQ(r[4 * n + t], base + (lane ^ 17));
      EXPECT_EQ(static_cast<unsigned>(r[5 * n + t]), 0x49249249u);
      EXPECT_EQ(r[6 * n + t], 1);
      EXPECT_EQ(r[7 * n + t], 0);
      EXPECT_EQ(r[8 * n + t], base + (lane < 16 ? lane ^ 1 : lane ^ 2));
      EXPECT_EQ(r[9 * n + t], n / 2);
      EXPECT_NE(r[10 * n + t], 0);
      EXPECT_EQ(r[11 * n + t], 0);
    }
  }
}

TEST_P(Intrinsics, Indices) {
  DeviceBuffer<int> d(12 * 24);
  intrinsics::indices(d.get());
  const std::vector<int> r = d.to_host();
  for (int b = 0; b < 12; ++b)
    for (int t = 0; t < 24; ++t) EXPECT_EQ(r[static_cast<std::size_t>(b * 24 + t)], b * 1000 + t);
}

TEST_P(Intrinsics, Atomics) {
  DeviceBuffer<int> counters(std::vector<int>(5, 0));
  DeviceBuffer<float> sum(std::vector<float>(1, 0.0f));
  intrinsics::atomics(counters.get(), sum.get());
  EXPECT_EQ(counters.to_host(), (std::vector<int>{192, 191, -191, 42, 7}));
  EXPECT_EQ(sum.to_host()[0], 96.0f);
}

TEST_P(Intrinsics, DynamicSharedMemoryAndBarriers) {
  for (int threads : {1, 31, 50, 1024}) {
    std::vector<float> host(static_cast<std::size_t>(2 * threads));
    for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<float>(i);
    DeviceBuffer<float> d(host);
    intrinsics::rotate(d.get(), 2, threads, 3);
    const auto r = d.to_host();
    for (int i = 0; i < threads; ++i)
      EXPECT_EQ(r[static_cast<std::size_t>(i)], static_cast<float>((i + 3) % threads));
  }
}

TEST_P(Intrinsics, ParametersAreCopiedPerThread) {
  DeviceBuffer<float> d(8);
  intrinsics::params(d.get());
  const auto r = d.to_host();
  for (int i = 0; i < 8; ++i)
    EXPECT_EQ(r[static_cast<std::size_t>(i)], 0.5f + static_cast<float>(i % 4) + 10 + static_cast<float>(i));
}

TEST_P(Intrinsics, StreamsAndEvents) {
  cudaStream_t a, b;
  cudaEvent_t ready, start, stop;
  NEEDLE_CUDA_CHECK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
  NEEDLE_CUDA_CHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
  NEEDLE_CUDA_CHECK(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
  NEEDLE_CUDA_CHECK(cudaEventCreate(&start));
  NEEDLE_CUDA_CHECK(cudaEventCreate(&stop));
  {
    DeviceBuffer<int> x(4), y(4);
    int* pinned;
    NEEDLE_CUDA_CHECK(cudaMallocHost(&pinned, 4 * sizeof(int)));
    NEEDLE_CUDA_CHECK(cudaEventRecord(start, a));
    NEEDLE_CUDA_CHECK(cudaMemsetAsync(x.get(), 1, 4 * sizeof(int), a));
    NEEDLE_CUDA_CHECK(cudaEventRecord(ready, a));
    NEEDLE_CUDA_CHECK(cudaStreamWaitEvent(b, ready));
    NEEDLE_CUDA_CHECK(cudaMemcpyAsync(y.get(), x.get(), 4 * sizeof(int), cudaMemcpyDeviceToDevice, b));
    NEEDLE_CUDA_CHECK(cudaMemcpyAsync(pinned, y.get(), 4 * sizeof(int), cudaMemcpyDeviceToHost, b));
    NEEDLE_CUDA_CHECK(cudaEventRecord(stop, b));
    while (cudaEventQuery(stop) == cudaErrorNotReady) {
    }
    EXPECT_EQ(pinned[3], 0x01010101);
    float ms = -1;
    NEEDLE_CUDA_CHECK(cudaEventElapsedTime(&ms, start, stop));
    EXPECT_GE(ms, 0.0f);
    NEEDLE_CUDA_CHECK(cudaFreeHost(pinned));
  }
  NEEDLE_CUDA_CHECK(cudaEventDestroy(ready));
  NEEDLE_CUDA_CHECK(cudaEventDestroy(start));
  NEEDLE_CUDA_CHECK(cudaEventDestroy(stop));
  NEEDLE_CUDA_CHECK(cudaStreamDestroy(a));
  NEEDLE_CUDA_CHECK(cudaStreamDestroy(b));
}

TEST_P(Intrinsics, LegacyStreamWaitsForBlockingStreams) {
  cudaStream_t s;
  NEEDLE_CUDA_CHECK(cudaStreamCreate(&s));
  {
    DeviceBuffer<int> x(4);
    std::vector<int> host(4);
    NEEDLE_CUDA_CHECK(cudaMemsetAsync(x.get(), 2, 4 * sizeof(int), s));
    NEEDLE_CUDA_CHECK(cudaMemcpy(host.data(), x.get(), 4 * sizeof(int), cudaMemcpyDeviceToHost));
    EXPECT_EQ(host[2], 0x02020202);
  }
  NEEDLE_CUDA_CHECK(cudaStreamDestroy(s));
}

TEST_P(Intrinsics, GraphOfOneStream) {
  cudaStream_t s;
  NEEDLE_CUDA_CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  {
    DeviceBuffer<int> x(std::vector<int>{0, 0}), y(2);
    DeviceBuffer<int> counters(std::vector<int>(5, 0));
    DeviceBuffer<float> sum(std::vector<float>(1, 0.0f));
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    NEEDLE_CUDA_CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    intrinsics::atomics(counters.get(), sum.get(), s);
    NEEDLE_CUDA_CHECK(cudaMemcpyAsync(y.get(), x.get(), 8, cudaMemcpyDeviceToDevice, s));
    NEEDLE_CUDA_CHECK(cudaStreamEndCapture(s, &graph));
    NEEDLE_CUDA_CHECK(cudaGraphInstantiate(&exec, graph));
    NEEDLE_CUDA_CHECK(cudaGraphDestroy(graph));
    EXPECT_EQ(sum.to_host()[0], 0.0f);  // nothing has run yet
    for (int i = 0; i < 3; ++i) NEEDLE_CUDA_CHECK(cudaGraphLaunch(exec, s));
    NEEDLE_CUDA_CHECK(cudaStreamSynchronize(s));
    EXPECT_EQ(sum.to_host()[0], 3 * 96.0f);
    EXPECT_EQ(y.to_host()[1], 0);
    NEEDLE_CUDA_CHECK(cudaGraphExecDestroy(exec));
    // What waits or allocates has no place in a capture.
    void* p = nullptr;
    NEEDLE_CUDA_CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    EXPECT_EQ(cudaMalloc(&p, 4), cudaErrorStreamCaptureUnsupported);
    EXPECT_EQ(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureInvalidated);
    (void)cudaGetLastError();
#if defined(NEEDLE_CUDA_EMULATED)
    EXPECT_EQ(needle::cuda::emu::take_reports().size(), 1u);
#endif
  }
  NEEDLE_CUDA_CHECK(cudaStreamDestroy(s));
}

#if defined(NEEDLE_CUDA_EMULATED)
INSTANTIATE_TEST_SUITE_P(Order, Intrinsics, ::testing::Range(0, 10));
#else
INSTANTIATE_TEST_SUITE_P(Order, Intrinsics, ::testing::Values(0));
#endif

}  // namespace
