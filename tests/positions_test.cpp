// Sinusoidal tables against values worked out by hand.
#include <gtest/gtest.h>

#include "needle/nn/positions.h"

namespace needle {
namespace {

TEST(Positions, BR015_SineAndCosineOfAPairShareTheirFrequency) {
  const std::vector<double> row = sinusoidal_table(2, 4, DType::f64)[1].to_vector<double>();
  const std::vector<double> right{0.8414709848, 0.5403023059, 0.0099998333, 0.9999500004};
  for (std::size_t i = 0; i < right.size(); ++i) EXPECT_NEAR(row[i], right[i], 1e-9);
}

TEST(Positions, BR015_AnOddWidthIsAClearError) {
  try {
    sinusoidal_table(2, 3);
    FAIL() << "an odd width was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("even"), std::string::npos);
  }
}

}  // namespace
}  // namespace needle
