// How the CUDA backend tells what failed, where and when it was seen.
#include "tests/on_devices.h"

#ifdef NEEDLE_TESTS_EMULATE
#include "needle/ops/ops.h"
#include "tests/cuda_device.h"
#include "tests/decoders.h"
#include "tests/temporary_folder.h"

namespace needle {
namespace {

TEST(CudaFailures, SaysWhetherTheDriverIsMissingOrTooOld) {
  EXPECT_EQ(why_no_devices(cudaErrorInsufficientDriver, 0, 13000), "no NVIDIA driver was found");
  EXPECT_TRUE(contains(why_no_devices(cudaErrorInsufficientDriver, 11040, 13000),
                       std::vector<std::string>{"too old", "CUDA 11.4", "wants 13.0"}));
  EXPECT_EQ(why_no_devices(cudaErrorNoDevice, 13000, 13000), cudaGetErrorString(cudaErrorNoDevice));
}

// Without checks, as under AddressSanitizer, kernels may read the host's memory.
#define NEEDLE_WANTS_CHECKED_KERNELS \
  if (!emu::checked_build()) GTEST_SKIP() << "wants kernels whose accesses are checked"

/// An array that a kernel must not read: it lies on the host.
View on_the_host(std::vector<float>& numbers) {
  return {numbers.data(), DType::f32, {std::ssize(numbers)}, {1}};
}

TEST(CudaFailures, AFailureIsSeenWhenTheHostWaitsAndSaysHowToFindIt) {
  NEEDLE_WANTS_CHECKED_KERNELS;
  cuda_device()->synchronize();  // so that it has no part in what follows
  CudaBackend backend(0);
  std::vector<float> numbers(4);
  backend.unary(Exp{}, on_the_host(numbers), on_the_host(numbers));
  const std::string message = error_of([&] { backend.synchronize(); });
  emu::clear_errors();
  EXPECT_TRUE(contains(message, std::vector<std::string>{"cuda:0", "in synchronize()",
                                                         "cudaErrorIllegalAddress", "NEEDLE_CUDA_SYNC=1"}));
}

TEST(CudaFailures, WaitingAfterEachLaunchNamesTheKernelTheOpAndTheModule) {
  NEEDLE_WANTS_CHECKED_KERNELS;
  cuda_device()->synchronize();
  setenv("NEEDLE_CUDA_SYNC", "1", 1);
  CudaBackend backend(0);
  unsetenv("NEEDLE_CUDA_SYNC");
  struct BadOp final : Op {
    explicit BadOp(CudaBackend& where) : backend(where) {}
    CudaBackend& backend;
    std::vector<float> numbers = std::vector<float>(4);
    const char* name() const override { return "bad"; }
    NDArrays compute(const NDArrays&) override {
      backend.unary(Exp{}, on_the_host(numbers), on_the_host(numbers));
      return {};
    }
    Tensors gradient(const Tensors&, const Saved&, const Needs&) override { return {}; }
  };
  const std::string path = "blocks.3.attention";
  const PathScope scope(path);
  const std::string message = error_of([&] { apply_op(std::make_unique<BadOp>(backend), {}); });
  emu::clear_errors();
  EXPECT_TRUE(contains(message, std::vector<std::string>{"elementwise_kernel", "Exp", "forward pass of bad",
                                                         "blocks.3.attention"}));
}

// The kernels that work on a host's array are named, so which ones a call takes is seen.
TEST(CudaFailures, HalvesOfTheRightWidthTakeTensorCores) {
  NEEDLE_WANTS_CHECKED_KERNELS;
  cuda_device()->synchronize();
  setenv("NEEDLE_CUDA_SYNC", "1", 1);
  CudaBackend backend(0);
  unsetenv("NEEDLE_CUDA_SYNC");
  std::vector<float> numbers(64);
  const View rows{numbers.data(), DType::bf16, {1, 1, 1, 64}, {64, 64, 64, 1}};
  const View log_sum{numbers.data(), DType::f32, {1, 1, 1}, {1, 1, 1}};
  const AttentionArrays arrays{rows, rows, rows, rows, log_sum};
  EXPECT_TRUE(contains(error_of([&] { backend.attention({}, arrays); }), "BFloat16"));
  emu::clear_errors();
  EXPECT_TRUE(contains(error_of([&] {
                         backend.attention_gradient({}, arrays, {rows, rows, rows, rows, {}});
                       }),
                       "state_kernel"));
  emu::clear_errors();
}

}  // namespace
}  // namespace needle
#endif
