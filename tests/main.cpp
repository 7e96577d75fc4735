// Runs the tests; `--gemm=openblas` has float32 products computed by that library alone.
#include <gtest/gtest.h>

#include <string_view>

#include "backends/cpu/gemm.h"

int main(int count, char** arguments) {
  testing::InitGoogleTest(&count, arguments);
  for (int i = 1; i < count; ++i) {
    if (std::string_view(arguments[i]) == "--gemm=openblas") needle::choose_gemm(needle::Gemm::openblas);
  }
  return RUN_ALL_TESTS();
}
