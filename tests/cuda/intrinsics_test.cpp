// Device built-ins and the runtime API.  The same expectations hold on the emulator and on a GPU, so
// running this file on a GPU is the test of the emulator.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "backends/dtype.h"
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

/// Whether the device multiplies bf16 and f16 on tensor cores.
bool has_tensor_cores() {
  int generation = 0;
  NEEDLE_CUDA_CHECK(cudaDeviceGetAttribute(&generation, cudaDevAttrComputeCapabilityMajor, 0));
  return generation >= 8;
}

template <class T>
void multiplies_on_tensor_cores(intrinsics::Half type) {
  // Small whole numbers, so that every order of summation gives the same; each place has its own.
  std::vector<unsigned short> a, b(16 * 8), b_transposed(16 * 8);
  for (int i = 0; i < 16 * 16; ++i) a.push_back(T(static_cast<float>(i * 7 % 31 - 15)).bits);
  std::vector<float> wanted(16 * 8), start;
  for (int k = 0; k < 16; ++k) {
    for (int n = 0; n < 8; ++n) {
      const int value = (k * 8 + n) * 5 % 23 - 11;
      b[static_cast<std::size_t>(k * 8 + n)] = b_transposed[static_cast<std::size_t>(n * 16 + k)] =
          T(static_cast<float>(value) * 0.25f).bits;
      for (int m = 0; m < 16; ++m)
        wanted[static_cast<std::size_t>(m * 8 + n)] +=
            static_cast<float>((m * 16 + k) * 7 % 31 - 15) * static_cast<float>(value) * 0.25f;
    }
  }
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    start.push_back(static_cast<float>(i));
    wanted[i] += static_cast<float>(i);
  }
  DeviceBuffer<unsigned short> d_a(a), d_b(b), d_b_transposed(b_transposed);
  for (const bool transposed : {false, true}) {
    DeviceBuffer<float> results(start);
    intrinsics::tensor_product(type, d_a.get(), transposed ? d_b_transposed.get() : d_b.get(), transposed,
                               results.get());
    EXPECT_EQ(results.to_host(), wanted) << transposed;
  }
}

TEST_P(Intrinsics, TensorCores) {
  if (!has_tensor_cores()) GTEST_SKIP() << "no tensor cores";
  multiplies_on_tensor_cores<needle::BFloat16>(intrinsics::Half::bf16);
  multiplies_on_tensor_cores<needle::Float16>(intrinsics::Half::f16);
}

template <class T>
void packs(intrinsics::Half type) {
  // Ties, numbers that round up to the next power, subnormal and too large ones.
  const std::vector<float> x{0.0f,      -0.0f,     1.0f,      -2.5f,    1.00390625f, 1.01171875f,
                             0.33333f,  65504.0f,  65519.0f,  65520.0f, 1e-5f,       3.0e-8f,
                             -2.98e-8f, 1e-40f,    3.39e38f,  -3.4e38f, HUGE_VALF,   -HUGE_VALF,
                             1e5f,      0.999999f, 2.000977f, -7e-6f};
  DeviceBuffer<float> d_x(x);
  DeviceBuffer<unsigned> words(x.size() / 2);
  intrinsics::pack(type, d_x.get(), words.get(), static_cast<int>(x.size() / 2));
  const std::vector<unsigned> r = words.to_host();
  for (std::size_t i = 0; i < x.size(); ++i)
    EXPECT_EQ(r[i / 2] >> (i % 2 * 16) & 0xffffu, T(x[i]).bits) << x[i];
}

TEST_P(Intrinsics, PairsOfHalves) {
  if (!has_tensor_cores()) GTEST_SKIP() << "no tensor cores";
  packs<needle::BFloat16>(intrinsics::Half::bf16);
  packs<needle::Float16>(intrinsics::Half::f16);
}

TEST_P(Intrinsics, AsynchronousCopies) {
  std::vector<uint4> x(64);
  for (unsigned i = 0; i < 64; ++i) x[i] = {i, i + 100, i + 200, i + 300};
  DeviceBuffer<uint4> d_x(x), y(64);
  intrinsics::copy_rows_async(d_x.get(), y.get());
  const std::vector<uint4> r = y.to_host();
  for (unsigned i = 0; i < 64; ++i) {
    EXPECT_EQ(r[i].x, i % 2 == 0 ? i : 0);
    EXPECT_EQ(r[i].w, i % 2 == 0 ? i + 300 : 0);
  }
}

TEST_P(Intrinsics, OffsetsOfMoreElementsThan32BitsCount) {
  DeviceBuffer<long long> offset(1);
  for (const long long i : {7ll, (2ll << 31) + 9}) {
    intrinsics::offset_of_many(i, offset.get());
    EXPECT_EQ(offset.to_host()[0], (i >> 31) + 5 * (i % (1ll << 31)));
  }
}

#if defined(NEEDLE_CUDA_EMULATED)
INSTANTIATE_TEST_SUITE_P(Order, Intrinsics, ::testing::Range(0, 10));
#else
INSTANTIATE_TEST_SUITE_P(Order, Intrinsics, ::testing::Values(0));
#endif

}  // namespace
