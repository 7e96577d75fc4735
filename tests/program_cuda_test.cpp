// The program on a CUDA device, as a user runs it.
#include "needle/autograd.h"
#include "tests/program.h"

namespace needle {
namespace {

class ProgramCudaTest : public ProgramTest {
 protected:
  void SetUp() override {
    if (all_devices().size() < 2) GTEST_SKIP() << "there is no CUDA device";
  }
  static Arguments on_cuda(Arguments arguments, const Arguments& more = {}) {
    arguments.insert(arguments.end(), {"--device", "cuda"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
};

TEST_F(ProgramCudaTest, TrainsAsOnTheCpuWithAndWithoutAGraph_cuda) {
  ASSERT_EQ(run(training("cpu", 4)).code, 0);
  const Result plain = run(on_cuda(training("cuda", 4)));
  ASSERT_EQ(plain.code, 0) << plain.errors;
  const Result graph = run(on_cuda(training("graph", 4), {"--graph"}));
  ASSERT_EQ(graph.code, 0) << graph.errors;
  EXPECT_EQ(losses_without_speed("cuda"), losses_without_speed("graph"));
  const auto first_loss = [&](const char* name) {
    const std::string text = losses_without_speed(name), row = text.substr(text.find('\n') + 1);
    return std::stod(row.substr(row.find(',') + 1));
  };
  EXPECT_NEAR(first_loss("cuda"), first_loss("cpu"), 1e-5 * first_loss("cpu"));
}

TEST_F(ProgramCudaTest, DevicesAreListedAndTheEmulatedOneSaysSo_cuda) {
  const Result listed = run({"devices"});
  EXPECT_EQ(listed.code, 0);
  EXPECT_TRUE(contains(listed.output, "cuda:0"));
  const Result bench = run({"bench", "--device", "cuda", "--work", "W1"});
  if (!all_devices()[1]->is_emulated()) return;
  EXPECT_TRUE(contains(listed.output, "emulated"));
  EXPECT_EQ(bench.code, 2);
  EXPECT_TRUE(contains(bench.errors, "emulated"));
}

TEST_F(ProgramCudaTest, Bf16IsRefusedBeforeAnythingIsWrittenWhereTheDeviceLacksIt_cuda) {
  if (!all_devices()[1]->is_emulated()) GTEST_SKIP() << "wants an emulated device of another generation";
  setenv("NEEDLE_EMU_SM", "75", 1);
  const Result refused = run(on_cuda(training("run", 2), {"--precision", "bf16"}));
  unsetenv("NEEDLE_EMU_SM");
  EXPECT_EQ(refused.code, 2);
  EXPECT_TRUE(contains(refused.errors, "compute capability 8.0"));
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

TEST_F(ProgramCudaTest, InsideShowsAStepOfIt_cuda) {
  const Result shown = run({"inside", "--device", "cuda", "--layers", "1", "--width", "8", "--heads", "2",
                            "--length", "4", "--json"});
  ASSERT_EQ(shown.code, 0) << shown.errors;
  const nlohmann::json record = nlohmann::json::parse(shown.output);
  EXPECT_EQ(record.at("device"), "cuda:0");
  double largest = 0;
  for (const auto& number : record.at("numbers"))
    largest = std::max(largest, std::abs(number.at("gradient").get<double>()));
  for (const auto& number : record.at("numbers"))
    EXPECT_NEAR(number.at("difference").get<double>(), 0, 1e-6 * largest);
}

}  // namespace
}  // namespace needle
