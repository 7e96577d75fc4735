// Reductions, picking and products of arrays of any strides, against plain loops.
#include <array>
#include <cmath>

#include "needle/ops/index.h"
#include "needle/ops/reduce.h"
#include "tests/agree.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

class ArrayMaths : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(, ArrayMaths, testing::ValuesIn(all_devices()), device_name);

// --- reductions and picking ----------------------------------------------------------------------------

TEST_P(ArrayMaths, ReductionsOverAnyAxesOfAnyStrides) {
  const std::vector<Axes> choices{{},     {0},    {1},       {2},       {3},     {0, 1},
                                  {0, 2}, {1, 3}, {0, 1, 2}, {3, 0, 2}, {-1, -2}};
  const NDArray base = normal({6, 5, 7, 4}, 1);
  const NDArray layouts[] = {base, base.permute({3, 1, 0, 2}), base.slice(0, 5, -7, -2).slice(2, 1, 7, 3),
                             base[2].unsqueeze(1).broadcast_to({5, 3, 7, 4})};
  for (const NDArray& x : layouts) {
    const std::vector<double> flat = x.to_vector<double>();
    for (const Axes& axes : choices) {
      const Shape kept = reduced_shape("sum", x.shape(), axes, true);
      std::vector<double> sums(static_cast<std::size_t>(kept.count())), highest(sums.size(), -HUGE_VAL),
          lowest(sums.size(), HUGE_VAL);
      for (std::size_t i = 0; i < flat.size(); ++i) {
        std::int64_t rest = static_cast<std::int64_t>(i), at = 0, stride = 1;
        for (int axis = 3; axis >= 0; --axis) {
          if (kept[axis] != 1 || x.shape()[axis] == 1) at += rest % x.shape()[axis] * stride;
          stride *= kept[axis];
          rest /= x.shape()[axis];
        }
        const std::size_t place = static_cast<std::size_t>(at);
        sums[place] += flat[i];
        highest[place] = std::max(highest[place], flat[i]);
        lowest[place] = std::min(lowest[place], flat[i]);
      }
      EXPECT_TRUE(agrees(reduce(Sum{}, x, axes, true), array(sums, kept)));
      EXPECT_TRUE(agrees(reduce(Sum{}, x.cast(DType::f32), axes, true), array(sums, kept), 1e-5, 10));
      EXPECT_TRUE(same(reduce(Max{}, x, axes, true), array(highest, kept)));
      EXPECT_TRUE(same(reduce(Min{}, x, axes, true), array(lowest, kept)));
      EXPECT_EQ(reduce(Sum{}, x, axes).shape(), reduced_shape("sum", x.shape(), axes, false));
    }
  }
}

TEST_P(ArrayMaths, EmptyReductions) {
  const Tensor none(NDArray::zeros({2, 0}, exact(), device()));
  EXPECT_TRUE(same(sum(none, {1}).array(), array({0, 0})));
  EXPECT_TRUE(std::isnan(mean(none).item()));
  EXPECT_EQ(sum(none, {0}).shape(), Shape{0});
  EXPECT_TRUE(contains(error_of([&] { max(none); }), {"max"}));
  EXPECT_TRUE(contains(error_of([&] { min(none, {1}); }), {"min"}));
  EXPECT_EQ(max(none, {0}).shape(), Shape{0});  // no result needs an element
  EXPECT_TRUE(contains(error_of([&] { argmax(none.array()); }), {"argmax", "[2, 0]"}));
}

TEST_P(ArrayMaths, ExtremesKeepNaN) {
  const NDArray x = array({1, NAN, 3, 4, 5, 6}, {2, 3});
  for (const DType dtype : dtypes()) {
    EXPECT_TRUE(same(reduce(Max{}, x.cast(dtype), {1}), array({NAN, 6})));
    EXPECT_TRUE(same(reduce(Min{}, x.cast(dtype), {0}), array({1, NAN, 3})));
  }
}

TEST_P(ArrayMaths, ManySmallNumbersAddUpInFloat32) {
  const NDArray x = NDArray::full({1 << 20}, 0.1, DType::f32, device());
  EXPECT_NEAR(reduce(Sum{}, x).item() / (0.1 * (1 << 20)), 1, within(1e-6));
}

TEST_P(ArrayMaths, ArgmaxAndTopKTakeTheFirstOfEquals) {
  const NDArray x = array({2, 5, 5, 1, 9, 9, 0, 9}, {2, 4});
  EXPECT_EQ(argmax(x).to_vector<std::int64_t>(), (std::vector<std::int64_t>{1, 0}));
  EXPECT_EQ(argmax(x, 0).to_vector<std::int64_t>(), (std::vector<std::int64_t>{1, 1, 0, 1}));
  EXPECT_EQ(argmax(x.transpose(), 0).to_vector<std::int64_t>(), (std::vector<std::int64_t>{1, 0}));
  const NDArray cube = normal({3, 4, 5}, 1);
  for (const int axis : {0, 1, 2}) {
    const NDArray best = argmax(cube, axis);
    const NDArray picked = gather(Tensor(cube), axis, best.unsqueeze(axis)).array();
    EXPECT_TRUE(same(picked.squeeze(axis), reduce(Max{}, cube, {axis})));
  }
  const auto [values, indices] = top_k(x, 3);
  EXPECT_TRUE(same(values, array({5, 5, 2, 9, 9, 9}, {2, 3})));
  EXPECT_TRUE(same(indices, ids({1, 2, 0, 0, 1, 3}, {2, 3})));
  EXPECT_TRUE(same(top_k(x.flip({1}), 1).second, ids({1, 0}, {2, 1})));
  EXPECT_TRUE(contains(error_of([&] { top_k(x, 5); }), {"top_k", "5", "[2, 4]"}));
}

TEST_P(ArrayMaths, TopKOfNothing) {
  const NDArray x = normal({2, 4}, 1);
  EXPECT_EQ(top_k(x, 0).first.shape(), (Shape{2, 0}));
  EXPECT_EQ(top_k(x.slice(0, 0, 0), 2).second.shape(), (Shape{0, 2}));
  EXPECT_EQ(top_k(x.slice(1, 0, 0), 0).second.shape(), (Shape{2, 0}));
}

// Whole numbers, so that the order of additions changes nothing: of a warp, of a block and of several tiles.
TEST_P(ArrayMaths, CumulativeSumsOfLinesOfAnyLength) {
  for (const std::int64_t count : {1, 31, 33, 100, 1024, 2500}) {
    std::vector<double> numbers(static_cast<std::size_t>(2 * count)), wanted(numbers.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = static_cast<double>(i * i % 7) - 2;
      wanted[i] = numbers[i] + (i < 2 ? 0 : wanted[i - 2]);
    }
    const NDArray x = array(numbers, {count, 2});
    EXPECT_TRUE(same(cumulative_sum(Tensor(x), 0).array(), array(wanted, {count, 2}))) << count;
    EXPECT_TRUE(
        same(cumulative_sum(Tensor(x.transpose()), 1).array().transpose(), array(wanted, {count, 2})));
  }
  EXPECT_EQ(cumulative_sum(Tensor(array({3}, {})), 0).item(), 3);
  EXPECT_EQ(cumulative_sum(Tensor(array({}, {2, 0})), 1).shape(), (Shape{2, 0}));
}

TEST_P(ArrayMaths, ManyRowsOfOneTargetAddUp) {
  constexpr std::int64_t kRows = 30, kWidth = 3;
  std::vector<std::int64_t> rows;
  std::vector<double> numbers, wanted(2 * kWidth);
  for (std::int64_t i = 0; i < kRows * kWidth; ++i) {
    const std::int64_t target = i / kWidth % 7 == 2 ? 0 : 1;
    if (i % kWidth == 0) rows.push_back(target);
    numbers.push_back(static_cast<double>(i * i % 11));
    wanted[static_cast<std::size_t>(target * kWidth + i % kWidth)] += numbers.back();
  }
  const Tensor table = leaf(std::vector<double>(2 * kWidth), {2, kWidth});
  gather_rows(table, ids(rows, {kRows})).backward(array(numbers, {kRows, kWidth}));
  EXPECT_TRUE(same(table.grad(), array(wanted, {2, kWidth})));
}

TEST_P(ArrayMaths, OneHot) {
  EXPECT_TRUE(same(one_hot(ids({2, 0, -1, 3}, {2, 2}), 3, exact()),
                   array({0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0}, {2, 2, 3})));
}

// --- products ------------------------------------------------------------------------------------------

TEST_P(ArrayMaths, ProductsOfAnyLayout) {
  const auto transposed = [](const NDArray& x) { return x.transpose().copy().transpose(); };
  const auto spread = [&](const NDArray& x) {
    NDArray place = NDArray::zeros({x.size(-2) * 2, x.size(-1) * 3}, x.dtype(), device())
                        .slice(0, 0, x.size(-2) * 2, 2)
                        .slice(1, 1, x.size(-1) * 3, 3);
    place.assign(x);
    return place;
  };
  for (const auto& [n, k, m] :
       {std::array<std::int64_t, 3>{1, 1, 1}, {5, 3, 4}, {1, 7, 5}, {5, 7, 1}, {33, 65, 17}, {4, 1, 6}}) {
    const NDArray a = normal({n, k}, 1), b = normal({k, m}, 2);
    std::vector<double> wanted(static_cast<std::size_t>(n * m));
    const std::vector<double> va = a.to_vector<double>(), vb = b.to_vector<double>();
    for (std::int64_t i = 0; i < n * m; ++i) {
      for (std::int64_t j = 0; j < k; ++j)
        wanted[static_cast<std::size_t>(i)] +=
            va[static_cast<std::size_t>(i / m * k + j)] * vb[static_cast<std::size_t>(j * m + i % m)];
    }
    for (const DType dtype : dtypes()) {
      const NDArray x = a.cast(dtype), y = b.cast(dtype);
      for (const NDArray& left : {x, transposed(x), spread(x), x.flip({0}).copy().flip({0})}) {
        for (const NDArray& right : {y, transposed(y), spread(y), y.flip({1}).copy().flip({1})}) {
          EXPECT_TRUE(agrees(matmul(left, right), array(wanted, {n, m}), bound_of(dtype), 1));
        }
      }
    }
  }
}

TEST_P(ArrayMaths, ProductsInBatches) {
  for (const DType dtype : dtypes()) {
    const NDArray a = normal({2, 3, 4, 5}, 1, dtype), b = normal({3, 5, 6}, 2, dtype);
    const NDArray product = matmul(a, b);
    for (std::int64_t i = 0; i < 2; ++i) {
      for (std::int64_t j = 0; j < 3; ++j) EXPECT_TRUE(agrees(product[i][j], matmul(a[i][j], b[j])));
    }
    // Heads lie between time and width, and are read where they lie.
    const NDArray heads = normal({2, 4, 3, 5}, 3, dtype).transpose(1, 2);
    EXPECT_TRUE(agrees(matmul(heads, b)[1][2], matmul(heads[1][2].copy(), b[2])));
    EXPECT_TRUE(agrees(matmul(heads, heads.transpose())[1][2],
                       matmul(heads[1][2].copy(), heads[1][2].transpose().copy())));
    EXPECT_TRUE(agrees(matmul(a[0][0].unsqueeze(0).broadcast_to({3, 4, 5}), b)[2], matmul(a[0][0], b[2])));
  }
}

TEST_P(ArrayMaths, EmptyProductsAreZeros) {
  const auto zeros = [&](const Shape& shape) { return NDArray::zeros(shape, DType::f32, device()); };
  EXPECT_TRUE(same(matmul(zeros({2, 0}), zeros({0, 3})), zeros({2, 3})));
  EXPECT_EQ(matmul(zeros({0, 2}), zeros({2, 3})).shape(), (Shape{0, 3}));
  EXPECT_EQ(matmul(zeros({4, 0, 2}), zeros({2, 3})).shape(), (Shape{4, 0, 3}));
  EXPECT_EQ(matmul(zeros({0}), zeros({0})).item(), 0);
  NDArray into = NDArray::ones({2, 3}, DType::f32, device());
  matmul_into(zeros({2, 0}), zeros({0, 3}), into, true);
  EXPECT_TRUE(same(into, NDArray::ones({2, 3}, DType::f32, device())));
  matmul_into(NDArray::ones({2, 4}, DType::f32, device()), NDArray::ones({4, 3}, DType::f32, device()), into,
              true);
  EXPECT_EQ(into.item({1, 2}), 5);
  EXPECT_TRUE(contains(error_of([&] {
                         matmul(zeros({32, 64}), zeros({48, 10}));
                       }),
                       {"matmul: inner sizes differ: [32, 64] x [48, 10]"}));
  EXPECT_TRUE(contains(error_of([&] { matmul(zeros({}), zeros({2})); }), {"matmul", "at least one axis"}));
  EXPECT_TRUE(contains(error_of([&] {
                         matmul(zeros({2, 3, 4}), zeros({3, 4, 5}));
                       }),
                       {"matmul", "[2]", "[3]"}));
}

}  // namespace
}  // namespace needle
