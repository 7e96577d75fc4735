// Runs the tests; `--gemm=openblas` has float32 products computed by that library alone.
#include <gtest/gtest.h>

#include <string_view>

#include "backends/cpu/gemm.h"
#include "backends/device.h"
#ifdef NEEDLE_TESTS_EMULATE
#include "cuda_emu/control.h"

namespace {

/// Fails a test in which a kernel did what it must not.
class EmulatorReports final : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo&) override {
    try {
      for (const needle::Device device : needle::all_devices()) device->synchronize();
    } catch (const needle::Error& error) {
      ADD_FAILURE() << error.what();
    }
    for (const auto& report : needle::cuda::emu::take_reports()) ADD_FAILURE() << report.text;
  }
};

}  // namespace
#endif

int main(int count, char** arguments) {
  testing::InitGoogleTest(&count, arguments);
#ifdef NEEDLE_TESTS_EMULATE
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  // Before the printer, so that what is found counts for the test.
  testing::TestEventListener* const printer = listeners.Release(listeners.default_result_printer());
  static EmulatorReports reports;
  listeners.Append(&reports);
  listeners.Append(printer);
#endif
  for (int i = 1; i < count; ++i) {
    if (std::string_view(arguments[i]) == "--gemm=openblas") needle::choose_gemm(needle::Gemm::openblas);
  }
  const int result = RUN_ALL_TESTS();
#ifdef NEEDLE_TESTS_EMULATE
  listeners.Release(&reports);
#endif
  return result;
}
