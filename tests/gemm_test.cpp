// Products by every library of the build, and in every way that threads share them.
#include "backends/cpu/gemm.h"

#include "tests/agree.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

class Products : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(All, Products, testing::ValuesIn(all_devices()), device_name);

TEST_P(Products, EveryLibraryAgreesWithFloat64) {
  struct Case {
    std::int64_t n, k, m;
  };
  // Around the sizes at which the work is shared otherwise: single rows, few rows, long inner axes, large
  // results.
  for (const auto& [n, k, m] : {Case{1, 70, 65},
                                {1, 300, 1},
                                {2, 16, 16},
                                {3, 130, 200},
                                {7, 15, 70},
                                {8, 301, 259},
                                {9, 64, 64},
                                {16, 256, 40},
                                {130, 17, 900},
                                {1100, 33, 500},
                                {100, 2000, 300},
                                {300, 1300, 1100},
                                {65, 64, 63}}) {
    for (const bool left : {false, true}) {
      for (const bool right : {false, true}) {
        const NDArray a = left ? normal({k, n}, 1).transpose() : normal({n, k}, 1),
                      b = right ? normal({m, k}, 2).transpose() : normal({k, m}, 2);
        const auto wide = [](const NDArray& x) { return x.to(cpu()).cast(DType::f64); };
        const NDArray start = normal({n, m}, 3), right_product = matmul(wide(a), wide(b)),
                      right_sum = binary(Add{}, right_product, wide(start));
        const NDArray single_a = left ? a.transpose().cast(DType::f32).transpose() : a.cast(DType::f32),
                      single_b = right ? b.transpose().cast(DType::f32).transpose() : b.cast(DType::f32);
        std::vector<Gemm> libraries = available_gemms();
        libraries.push_back(Gemm::automatic);
        for (const Gemm library : libraries) {
          SCOPED_TRACE(testing::Message() << n << ' ' << k << ' ' << m << ' ' << left << right);
          const GemmScope scope(library);
          EXPECT_TRUE(
              agrees(matmul(single_a, single_b), right_product, 1e-5, std::sqrt(static_cast<double>(k))));
          NDArray sum = start.cast(DType::f32).copy();
          matmul_into(single_a, single_b, sum, true);
          EXPECT_TRUE(agrees(sum, right_sum, 1e-5, std::sqrt(static_cast<double>(k))));
        }
      }
    }
  }
}

TEST_P(Products, ARowIsTheSameWhateverFewRowsGoWithIt) {
  const NDArray x = normal({8, 150}, 1, DType::f32);
  for (const bool transposed : {false, true}) {
    const NDArray b =
        transposed ? normal({90, 150}, 2, DType::f32).transpose() : normal({150, 90}, 2, DType::f32);
    for (std::int64_t rows = 1; device() == cpu() && rows <= 8; ++rows) {
      const NDArray y = matmul(x.slice(0, 0, rows), b);
      for (std::int64_t row = 0; row < rows; ++row)
        EXPECT_TRUE(same(y.slice(0, row, row + 1), matmul(x.slice(0, row, row + 1), b)));
    }
  }
}

TEST_P(Products, TheChoiceIsShownAndScoped) {
  const std::string before = gemm_description();
  {
    const GemmScope scope(Gemm::openblas);
    EXPECT_TRUE(gemm_description().starts_with("OpenBLAS"));
  }
  EXPECT_EQ(gemm_description(), before);
  if (available_gemms().size() == 1) {
    EXPECT_TRUE(contains(error_of([&] { choose_gemm(Gemm::onednn); }), {"oneDNN", "libdnnl-dev"}));
  }
}

}  // namespace
}  // namespace needle
