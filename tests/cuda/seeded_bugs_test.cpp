// Proves that each kind of mistake is caught in the emulated build.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <thread>

#include "cuda_emu/control.h"
#include "tests/cuda/device_buffer.h"
#include "tests/cuda/example_kernels.h"
#include "tests/cuda/seeded_bugs.h"

namespace emu = needle::cuda::emu;
using emu::Violation;
using seeded::Bug;

namespace {

class SeededBug : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(cudaDeviceReset(), cudaSuccess); }
  void TearDown() override { (void)cudaDeviceReset(); }

  static std::vector<float> numbers(std::size_t n) {
    std::vector<float> v(n);
    std::iota(v.begin(), v.end(), 1.0f);
    return v;
  }
  // Runs the kernel and returns what was reported.
  static std::vector<emu::Report> reports_of(Bug bug, bool with_bug) {
    DeviceBuffer<float> in(numbers(256)), out(bug == Bug::off_by_one_write ? 128 : 256);
    if (bug == Bug::no_atomic) NEEDLE_CUDA_CHECK(cudaMemset(out.get(), 0, 4));
    try {
      seeded::run(bug, with_bug, in.get(), out.get());
      NEEDLE_CUDA_CHECK(cudaDeviceSynchronize());
    } catch (const needle::cuda::Error&) {
      EXPECT_TRUE(with_bug);
    }
    auto reports = emu::take_reports();
    EXPECT_EQ(reports.empty(), cudaGetLastError() == cudaSuccess);
    emu::clear_errors();
    return reports;
  }
  static void expect_caught(Bug bug, Violation kind) {
    EXPECT_TRUE(reports_of(bug, false).empty()) << "the correct kernel was blamed";
    const auto reports = reports_of(bug, true);
    EXPECT_TRUE(
        std::any_of(reports.begin(), reports.end(), [&](const emu::Report& r) { return r.kind == kind; }))
        << "not found: " << emu::to_string(kind);
  }
};

#define NEEDLE_NEEDS_CHECKED_BUILD \
  if (!emu::checked_build()) GTEST_SKIP() << "needs the checked build"

TEST_F(SeededBug, MissingBarrier) {
  NEEDLE_NEEDS_CHECKED_BUILD;
  expect_caught(Bug::missing_barrier, Violation::race);
}
TEST_F(SeededBug, MissingSecondBarrier) {
  NEEDLE_NEEDS_CHECKED_BUILD;
  expect_caught(Bug::missing_second_barrier, Violation::race);
}
TEST_F(SeededBug, MissingSyncwarp) {
  NEEDLE_NEEDS_CHECKED_BUILD;
  expect_caught(Bug::missing_syncwarp, Violation::race);
}
TEST_F(SeededBug, PlainUpdateInsteadOfAtomic) {
  NEEDLE_NEEDS_CHECKED_BUILD;
  expect_caught(Bug::no_atomic, Violation::race);
}
TEST_F(SeededBug, OffByOneWrite) {
  NEEDLE_NEEDS_CHECKED_BUILD;
  expect_caught(Bug::off_by_one_write, Violation::out_of_bounds);
}
TEST_F(SeededBug, OffByOneRead) {
  NEEDLE_NEEDS_CHECKED_BUILD;
  expect_caught(Bug::off_by_one_read, Violation::out_of_bounds);
}
TEST_F(SeededBug, SharedOffByOne) {
  NEEDLE_NEEDS_CHECKED_BUILD;
  expect_caught(Bug::shared_off_by_one, Violation::out_of_bounds);
}
TEST_F(SeededBug, UninitializedShared) {
  NEEDLE_NEEDS_CHECKED_BUILD;
  expect_caught(Bug::uninitialized_shared, Violation::uninitialized);
}
TEST_F(SeededBug, Misaligned) {
  NEEDLE_NEEDS_CHECKED_BUILD;
  expect_caught(Bug::misaligned, Violation::misaligned);
}
TEST_F(SeededBug, DivergentBarrier) { expect_caught(Bug::divergent_barrier, Violation::divergent_barrier); }
TEST_F(SeededBug, BarrierAfterReturn) {
  expect_caught(Bug::barrier_after_return, Violation::divergent_barrier);
}
TEST_F(SeededBug, ShuffleInBranch) { expect_caught(Bug::shuffle_in_branch, Violation::deadlock); }
TEST_F(SeededBug, ShuffleFromMissingLane) {
  expect_caught(Bug::shuffle_from_missing_lane, Violation::warp_misuse);
}
TEST_F(SeededBug, TooMuchShared) { expect_caught(Bug::too_much_shared, Violation::api_misuse); }
TEST_F(SeededBug, NeighbouringHalvesAreNoRace) { EXPECT_TRUE(reports_of(Bug::none, false).empty()); }

// Every seed and both orders of the threads: the checks do not depend on luck.
TEST_F(SeededBug, RacesAreFoundInEveryOrder) {
  NEEDLE_NEEDS_CHECKED_BUILD;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    emu::set_seed(seed);
    for (Bug bug : {Bug::missing_barrier, Bug::missing_second_barrier, Bug::missing_syncwarp, Bug::no_atomic})
      expect_caught(bug, Violation::race);
  }
  emu::set_seed(0);
}

#if defined(__SANITIZE_ADDRESS__)
// AddressSanitizer and UBSan know the bounds too, and those of local arrays, but nothing about races.
TEST_F(SeededBug, AddressSanitizerFindsOverflows) {
  for (Bug bug : {Bug::off_by_one_write, Bug::off_by_one_read, Bug::shared_off_by_one}) {
    EXPECT_TRUE(reports_of(bug, false).empty());
    EXPECT_DEATH(reports_of(bug, true), "AddressSanitizer: use-after-poison|out of bounds for type");
  }
  EXPECT_TRUE(reports_of(Bug::local_array, false).empty());
  EXPECT_DEATH(reports_of(Bug::local_array, true),
               "AddressSanitizer: stack-buffer-overflow|out of bounds for type");
}
#endif

// Several host threads, each with its own stream and memory.
TEST_F(SeededBug, SeveralHostThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      cudaStream_t stream;
      NEEDLE_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
      for (int i = 0; i < 20; ++i) {
        DeviceBuffer<float> in(numbers(200)), out(200);
        needle::cuda::row_softmax(in.get(), out.get(), 2, 100, stream);
        NEEDLE_CUDA_CHECK(cudaStreamSynchronize(stream));
        const auto host = out.to_host();
        EXPECT_NEAR(std::accumulate(host.begin(), host.end(), 0.0f), 2.0f, 1e-4f);
      }
      NEEDLE_CUDA_CHECK(cudaStreamDestroy(stream));
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_TRUE(emu::take_reports().empty());
}

TEST_F(SeededBug, UninitializedGlobal) {
  NEEDLE_NEEDS_CHECKED_BUILD;
  DeviceBuffer<float> a(numbers(64)), b(64), out(64);
  needle::cuda::vector_add(a.get(), b.get(), out.get(), 64, nullptr);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  EXPECT_EQ(emu::take_reports().at(0).kind, Violation::uninitialized);
}

TEST_F(SeededBug, UninitializedBf16) {
  NEEDLE_NEEDS_CHECKED_BUILD;
  DeviceBuffer<unsigned short> in(7), out(7);
  NEEDLE_CUDA_CHECK(cudaMemset(in.get(), 0, 6));  // 3 of 7 elements
  needle::cuda::scale_bf16(in.get(), out.get(), 2.0f, 3, nullptr);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  needle::cuda::scale_bf16(in.get(), out.get(), 2.0f, 4, nullptr);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  EXPECT_EQ(emu::take_reports().at(0).kind, Violation::uninitialized);
}

TEST_F(SeededBug, OutputNotFullyWritten) {
  NEEDLE_NEEDS_CHECKED_BUILD;
  DeviceBuffer<float> a(numbers(64)), b(numbers(64)), out(64);
  needle::cuda::vector_add(a.get(), b.get(), out.get(), 63, nullptr);
  EXPECT_THROW(out.to_host(), needle::cuda::Error);
  EXPECT_EQ(emu::take_reports().at(0).kind, Violation::uninitialized);
}

TEST_F(SeededBug, UseAfterFree) {
  NEEDLE_NEEDS_CHECKED_BUILD;
  DeviceBuffer<float> a(numbers(64)), out(64);
  float* freed;
  {
    DeviceBuffer<float> b(numbers(64));
    freed = b.get();
  }
  needle::cuda::vector_add(a.get(), freed, out.get(), 64, nullptr);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  EXPECT_EQ(emu::take_reports().at(0).kind, Violation::use_after_free);
}

TEST_F(SeededBug, KernelReadsHostMemory) {
  NEEDLE_NEEDS_CHECKED_BUILD;
  DeviceBuffer<float> out(1);
  auto on_heap = std::make_unique<float>(1.0f);
  float on_stack = 2.0f;
  for (const float* p : std::initializer_list<const float*>{on_heap.get(), &on_stack, nullptr}) {
    seeded::run_follow_pointer(p, out.get());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    EXPECT_EQ(emu::take_reports().at(0).kind, Violation::invalid_address);
    emu::clear_errors();
  }
}

TEST_F(SeededBug, HostDereferencesDevicePointer) {
  DeviceBuffer<float> a(numbers(64));
  EXPECT_DEATH(
      {
        volatile float x = a.get()[3];
        (void)x;
      },
      "host code dereferenced a device pointer: .*byte 12 of allocation");
}

TEST_F(SeededBug, GemmOutOfBounds) {
  DeviceBuffer<float> a(numbers(6)), b(numbers(12)), c(8);
  cublasHandle_t handle;
  ASSERT_EQ(cublasCreate(&handle), CUBLAS_STATUS_SUCCESS);
  needle::cuda::batched_matmul(handle, a.get(), b.get(), c.get(), 1, 2, 4,
                               4);  // a has 2 x 3 elements, not 2 x 4
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  EXPECT_EQ(emu::take_reports().at(0).kind, Violation::out_of_bounds);
  EXPECT_EQ(cublasDestroy(handle), CUBLAS_STATUS_SUCCESS);
}

TEST_F(SeededBug, ForgottenSynchronisation) {
  float* pinned;
  ASSERT_EQ(cudaMallocHost(&pinned, 64 * sizeof(float)), cudaSuccess);
  std::fill(pinned, pinned + 64, 0.0f);
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  {
    DeviceBuffer<float> a(numbers(64)), b(numbers(64)), out(64);
    needle::cuda::vector_add(a.get(), b.get(), out.get(), 64, stream);
    ASSERT_EQ(cudaMemcpyAsync(pinned, out.get(), 64 * sizeof(float), cudaMemcpyDeviceToHost, stream),
              cudaSuccess);
    EXPECT_EQ(pinned[3], 0.0f);  // a program that looks now sees the old value
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(pinned[3], 8.0f);
  }
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  ASSERT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST_F(SeededBug, BadLaunchConfiguration) {
  DeviceBuffer<float> out(1);
  EXPECT_THROW(needle::cuda::launch(
                   +[](float*) {}, {dim3(1), dim3(1025)}, out.get()),
               needle::cuda::Error);
  EXPECT_THROW(needle::cuda::launch(
                   +[](float*) {}, {dim3(1, 65536), dim3(1)}, out.get()),
               needle::cuda::Error);
  EXPECT_THROW(needle::cuda::launch(
                   +[](float*) {}, {dim3(1), dim3(1), 256 * 1024}, out.get()),
               needle::cuda::Error);
  EXPECT_NO_THROW(needle::cuda::launch(
      +[](float*) {}, {dim3(0), dim3(1)}, out.get()));  // empty grid: nothing to do
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(SeededBug, OutOfMemory) {
  void* p = nullptr;
  emu::set_memory_limit(1000);
  EXPECT_EQ(cudaMalloc(&p, 2000), cudaErrorMemoryAllocation);
  emu::set_memory_limit(std::size_t{1} << 30);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  emu::fail_malloc(2);
  EXPECT_EQ(cudaMalloc(&p, 8), cudaSuccess);
  EXPECT_EQ(cudaFree(p), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&p, 8), cudaErrorMemoryAllocation);
  (void)cudaGetLastError();
}

}  // namespace
