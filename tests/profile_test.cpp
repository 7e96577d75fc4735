// The profiler, and the trace that it writes.
#include "needle/inspect/profile.h"

#include <nlohmann/json.hpp>

#include "needle/io/files.h"
#include "needle/ops/ops.h"
#include "tests/on_devices.h"
#include "tests/temporary_folder.h"

namespace needle {
namespace {

class ProfileTest : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(All, ProfileTest, testing::ValuesIn(all_devices()), device_name);

TEST_P(ProfileTest, EveryOpIsThereWithItsShapesOperationsAndBytes) {
  Profiler profiler;
  const Tensor x(normal({2, 3}, 1)), weight(normal({3, 4}, 2), true), bias(normal({4}, 3), true);
  {
    const ObserverScope watch(&profiler);
    sum(linear(x, weight, bias)).backward();
  }
  ASSERT_EQ(profiler.ops().size(), 4u);
  const ProfiledOp &forward = profiler.ops()[0], &backward = profiler.ops()[3];
  EXPECT_EQ(forward.op, "linear");
  EXPECT_EQ(forward.operations, 2 * 2 * 3 * 4);
  EXPECT_EQ(forward.bytes, static_cast<std::int64_t>(size_of(exact())) * (2 * 3 + 3 * 4 + 4 + 2 * 4));
  EXPECT_EQ(forward.outputs, (std::vector<Shape>{{2, 4}}));
  EXPECT_EQ(backward.op, "linear");
  EXPECT_EQ(backward.phase, Phase::backward);
  EXPECT_EQ(backward.operations, 2 * 2 * 3 * 4);  // the weight's product: x is a constant
  for (const ProfiledOp& op : profiler.ops()) EXPECT_GE(op.seconds, 0);

  const std::vector<ProfileRow> rows = profile_table(profiler.ops());
  ASSERT_EQ(rows.size(), 4u);
  for (std::size_t i = 1; i < rows.size(); ++i) EXPECT_GE(rows[i - 1].seconds, rows[i].seconds);

  const TemporaryFolder folder;
  write_trace((folder / "trace.json").string(), profiler.ops());
  const nlohmann::json events = nlohmann::json::parse(read_file(folder / "trace.json")).at("traceEvents");
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].at("name"), "linear");
  EXPECT_EQ(events[0].at("ph"), "X");
  EXPECT_EQ(events[3].at("cat"), "backward");
}

}  // namespace
}  // namespace needle
