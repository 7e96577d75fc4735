// NDArray: creation, views, conversions, random numbers, memory, printing.
#include "needle/ndarray.h"

#include <cmath>
#include <sstream>

#include "needle/ops/reduce.h"
#include "needle/threads.h"
#include "tests/agree.h"
#include "tests/on_devices.h"

namespace needle {
namespace {

class Arrays : public OnDevice {
 protected:
  /// 0, 1, 2, ... in that shape.
  NDArray counted(const Shape& shape, DType dtype) const {
    return NDArray::arange(shape.count(), dtype, device()).reshape(shape);
  }
  NDArray counted(const Shape& shape) const { return counted(shape, exact()); }
};
INSTANTIATE_TEST_SUITE_P(, Arrays, testing::ValuesIn(all_devices()), device_name);

constexpr DType kAllTypes[] = {DType::f32, DType::f64, DType::bf16,   DType::f16,
                               DType::i32, DType::i64, DType::boolean};

TEST_P(Arrays, Creation) {
  for (const DType dtype : kAllTypes) {
    EXPECT_EQ(NDArray::ones({2, 3}, dtype, device()).to_vector<double>(), std::vector<double>(6, 1));
    EXPECT_EQ(NDArray::zeros({}, dtype, device()).item(), 0);
    EXPECT_EQ(NDArray::full({2}, 1, dtype, device()).dtype(), dtype);
    EXPECT_TRUE(NDArray::zeros({3, 0, 2}, dtype, device()).to_vector<float>().empty());
  }
  EXPECT_TRUE(same(NDArray::arange(4, exact(), device(), 1, -0.5), array({1, 0.5, 0, -0.5})));
  EXPECT_EQ(NDArray::scalar(2.5, DType::f32, device()).shape(), Shape{});
  EXPECT_FALSE(NDArray().defined());
  EXPECT_TRUE(contains(error_of([&] { array({1, 2, 3}, {2, 2}); }), {"3 values", "[2, 2]"}));
  EXPECT_TRUE(contains(error_of([&] { NDArray::empty({2, -1}); }), {"[2, -1]"}));
  EXPECT_TRUE(contains(error_of([&] {
                         NDArray::empty({std::int64_t{1} << 40, std::int64_t{1} << 40});
                       }),
                       {"not possible"}));
  EXPECT_TRUE(contains(error_of([&] { NDArray::zeros({1, 1, 1, 1, 1, 1, 1, 1, 1}); }), {"at most 8"}));
}

TEST_P(Arrays, ViewsShareTheirElements) {
  NDArray x = counted({2, 3, 4});
  NDArray part = x.transpose(0, 2).slice(0, 1, 4, 2)[0];  // [3, 2]: x[:, :, 1] transposed
  EXPECT_TRUE(same(part, array({1, 13, 5, 17, 9, 21}, {3, 2})));
  part.assign(NDArray::scalar(-1, exact(), device()));
  EXPECT_EQ(x.item({1, 2, 1}), -1);
  EXPECT_EQ(x.item({1, 2, 2}), 22);
  EXPECT_EQ(x.writes(), 1u);
}

TEST_P(Arrays, SlicesAsInPython) {
  struct Case {
    std::int64_t start, stop, step;
    std::vector<double> wanted;
  };
  const std::int64_t far = 1000;
  for (const Case& c :
       {Case{0, 5, 1, {0, 1, 2, 3, 4}}, Case{1, 4, 2, {1, 3}}, Case{-2, far, 1, {3, 4}},
        Case{0, -1, 1, {0, 1, 2, 3}}, Case{3, 1, 1, {}}, Case{far, 0, 1, {}}, Case{-far, 2, 1, {0, 1}},
        Case{4, 0, -1, {4, 3, 2, 1}}, Case{-1, -far, -1, {4, 3, 2, 1, 0}}, Case{-1, -far, -2, {4, 2, 0}},
        Case{far, 2, -1, {4, 3}}, Case{0, 3, -1, {}}, Case{1, 2, 7, {1}}}) {
    const NDArray part = counted({5}).slice(0, c.start, c.stop, c.step);
    EXPECT_EQ(part.to_vector<double>(), c.wanted) << c.start << ':' << c.stop << ':' << c.step;
    const NDArray inner = counted({2, 5}).slice(-1, c.start, c.stop, c.step)[1];
    EXPECT_EQ(inner.count(), part.count());
  }
  EXPECT_TRUE(contains(error_of([&] { counted({5}).slice(0, 0, 2, 0); }), {"step"}));
  EXPECT_TRUE(contains(error_of([&] { counted({5}).slice(1, 0, 2); }), {"axis 1", "1 axes"}));
  EXPECT_TRUE(contains(error_of([&] { counted({5})[5]; }), {"5", "[5]"}));
  EXPECT_EQ(counted({5})[-1].item(), 4);
}

TEST_P(Arrays, ReshapeIsAViewWhereStridesAllow) {
  const NDArray x = counted({2, 3, 4});
  EXPECT_EQ(x.reshape({6, -1}).shape(), (Shape{6, 4}));
  EXPECT_EQ(x.reshape({6, 4}).view().data, x.view().data);
  EXPECT_EQ(x.transpose(0, 1).reshape({3, 2, 2, 2}).view().data, x.view().data);
  EXPECT_EQ(x.slice(1, 0, 2).reshape({2, 8}).view().data, x.view().data);
  EXPECT_NE(x.transpose(0, 1).reshape({6, 4}).view().data, x.view().data);
  EXPECT_TRUE(same(x.transpose(0, 1).reshape({6, 4})[1], x[1][0]));
  EXPECT_EQ(x.reshape({1, 2, 1, 12, 1}).shape(), (Shape{1, 2, 1, 12, 1}));
  EXPECT_EQ(counted({1}).reshape({}).item(), 0);
  EXPECT_EQ(counted({0, 3}).reshape({5, 0}).shape(), (Shape{5, 0}));
  EXPECT_TRUE(contains(error_of([&] { x.reshape({5, 5}); }), {"[2, 3, 4]", "[5, 5]"}));
  EXPECT_TRUE(contains(error_of([&] { x.reshape({-1, -1}); }), {"only one"}));
  EXPECT_TRUE(contains(error_of([&] { x.reshape({7, -1}); }), {"[2, 3, 4]", "[7, -1]"}));
}

/// Every way to cut 24 elements into sizes, reached from every permutation of a strided array.
TEST_P(Arrays, ReshapeKeepsTheOrderWhateverTheStrides) {
  const std::vector<Shape> shapes{{24}, {2, 12}, {3, 8}, {4, 6}, {2, 3, 4}, {1, 4, 1, 3, 2}, {2, 2, 2, 3, 1}};
  const NDArray big = counted({4, 2, 6, 1, 8});
  for (const NDArray& x :
       {big.slice(0, 0, 2).slice(2, 0, 6, 2).slice(4, 0, 8, 4).squeeze(3),
        big.slice(4, 7, -9, -7).slice(2, 0, 3).slice(0, 1, 3), big[1][1].slice(0, 0, 3).flip({0, 2})}) {
    std::vector<int> axes(static_cast<std::size_t>(x.rank()));
    for (std::size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<int>(i);
    do {
      const NDArray permuted = x.permute(axes);
      for (const Shape& shape : shapes) {
        if (shape.count() != permuted.count()) continue;
        EXPECT_EQ(permuted.reshape(shape).to_vector<double>(), permuted.copy().to_vector<double>());
      }
    } while (std::next_permutation(axes.begin(), axes.end()));
  }
}

TEST_P(Arrays, AxesAreCheckedAndMayCountFromTheEnd) {
  const NDArray x = counted({2, 3, 4});
  EXPECT_EQ(x.permute({-1, 0, 1}).shape(), (Shape{4, 2, 3}));
  EXPECT_EQ(x.unsqueeze(-1).shape(), (Shape{2, 3, 4, 1}));
  EXPECT_EQ(x.unsqueeze(0).squeeze(0).shape(), x.shape());
  EXPECT_TRUE(same(x.flip({0, -1})[0][0], array({15, 14, 13, 12})));
  EXPECT_EQ(x.size(-1), 4);
  EXPECT_TRUE(contains(error_of([&] { x.permute({0, 1, 1}); }), {"axis 1", "twice"}));
  EXPECT_TRUE(contains(error_of([&] { x.permute({0, 1}); }), {"2 axes", "[2, 3, 4]"}));
  EXPECT_TRUE(contains(error_of([&] { x.squeeze(1); }), {"axis 1", "[2, 3, 4]"}));
  EXPECT_TRUE(contains(error_of([&] { reduce(Sum{}, x, {3}); }), {"sum", "axis 3", "3 axes"}));
  EXPECT_EQ(reduce(Sum{}, counted({}), {-1}).item(), 0);
}

TEST_P(Arrays, BroadcastingAsInNumPy) {
  const NDArray wide = counted({3, 1}).broadcast_to({2, 3, 4});
  EXPECT_EQ(wide.item({1, 2, 3}), 2);
  EXPECT_FALSE(wide.is_exclusive());
  EXPECT_TRUE(same(binary(Add{}, counted({2, 1}), counted({3})), array({0, 1, 2, 1, 2, 3}, {2, 3})));
  EXPECT_EQ(binary(Add{}, counted({2, 0}), counted({1})).shape(), (Shape{2, 0}));
  EXPECT_TRUE(contains(error_of([&] { binary(Add{}, counted({2, 3}), counted({4})); }), {"[2, 3]", "[4]"}));
  EXPECT_TRUE(contains(error_of([&] { counted({3}).broadcast_to({3, 1}); }), {"[3]", "[3, 1]"}));
  EXPECT_TRUE(contains(error_of([&] { binary(Add{}, counted({2}), counted({2}, DType::f16)); }),
                       {std::string(name_of(exact())), "f16", "cast"}));
}

TEST_P(Arrays, CastsConvertAsTheyShould) {
  const NDArray x = array({-2.75, 0, 1, 300, 1e-3});
  EXPECT_EQ(x.cast(DType::i64).to_vector<std::int64_t>(), (std::vector<std::int64_t>{-2, 0, 1, 300, 0}));
  EXPECT_EQ(x.cast(DType::boolean).to_vector<bool>(), (std::vector<bool>{true, false, true, true, true}));
  EXPECT_EQ(x.cast(DType::f32).to_vector<float>()[4], 1e-3f);
  EXPECT_EQ(x.cast(exact()).view().data, x.view().data);
  // The ids of a large vocabulary and the sizes of large files survive.
  const std::int64_t large = (std::int64_t{1} << 53) - 1;
  EXPECT_EQ(ids({large}, {1}).cast(DType::f64).cast(DType::i64).to_vector<std::int64_t>()[0], large);
}

TEST_P(Arrays, SixteenBitFormatsRoundToNearestEven) {
  const std::pair<double, double> halves[] = {{1 + 1.0 / 2048, 1},
                                              {1 + 3.0 / 2048, 1 + 4.0 / 2048},
                                              {65504, 65504},
                                              {65519, 65504},
                                              {65520, HUGE_VAL},
                                              {0x1p-24, 0x1p-24},
                                              {0x1p-25, 0},
                                              {0x1.8p-25, 0x1p-24},
                                              {-0x1.ff8p-15, -0x1.ff8p-15},
                                              {-HUGE_VAL, -HUGE_VAL}};
  for (const auto& [from, to] : halves)
    EXPECT_EQ(array({from}).cast(DType::f32).cast(DType::f16).item(), to) << from;
  const std::pair<double, double> bfloats[] = {{1 + 1.0 / 256, 1},
                                               {1 + 3.0 / 256, 1 + 4.0 / 256},
                                               {3.39e38, 0x1.fep127},
                                               {1e-40, 0x1p-133},
                                               {HUGE_VAL, HUGE_VAL}};
  for (const auto& [from, to] : bfloats)
    EXPECT_EQ(array({from}).cast(DType::f32).cast(DType::bf16).item(), to) << from;
  for (const DType dtype : {DType::f16, DType::bf16})
    EXPECT_TRUE(std::isnan(array({NAN}).cast(dtype).item()));
  // Arithmetic on them is float32's, rounded once.
  const NDArray sum = binary(Add{}, array({1}, {1}, DType::bf16), array({1.0 / 128}, {1}, DType::bf16));
  EXPECT_EQ(sum.dtype(), DType::bf16);
  EXPECT_EQ(sum.item(), 1 + 1.0 / 128);
  EXPECT_TRUE(
      agrees(unary(Tanh{}, array({0.5, 2}, {2}, DType::f16)), array({std::tanh(0.5), std::tanh(2.0)})));
}

TEST_P(Arrays, EveryBitPatternOfTheSixteenBitFormatsComesBack) {
  std::vector<Float16> halves(65536);
  std::vector<BFloat16> bfloats(65536);
  for (std::uint32_t bits = 0; bits < 65536; ++bits)
    halves[bits].bits = bfloats[bits].bits = static_cast<std::uint16_t>(bits);
  const auto check = [&](const NDArray& x) { EXPECT_TRUE(same(x.cast(DType::f32).cast(x.dtype()), x)); };
  check(NDArray::from(halves, {65536}, device()));
  check(NDArray::from(bfloats, {65536}, device()));
}

TEST_P(Arrays, WholeNumbersAndTruthValues) {
  const NDArray a = ids({7, -7, 6}, {3}), b = ids({2, 2, -3}, {3});
  EXPECT_EQ(binary(Multiply{}, a, b).to_vector<std::int64_t>(), (std::vector<std::int64_t>{14, -14, -18}));
  EXPECT_EQ(binary(Less{}, a, b).to_vector<bool>(), (std::vector<bool>{false, true, false}));
  EXPECT_EQ(reduce(Max{}, a).item(), 7);
  EXPECT_EQ(reduce(Sum{}, a).item(), 6);
  EXPECT_TRUE(same(select(mask({1, 0, 1}, {3}), a, b), ids({7, 2, 6}, {3})));
  EXPECT_TRUE(contains(error_of([&] { select(a, a, b); }), {"bool", "i64"}));
  EXPECT_TRUE(contains(error_of([&] { unary(Exp{}, a); }), {"i64"}));
  EXPECT_TRUE(contains(error_of([&] { matmul(a, b); }), {"matmul", "floating", "i64"}));
}

// --- random numbers ------------------------------------------------------------------------------------

TEST(Philox, AgreesWithItsPublishedTestVector) {
  // Salmon et al.'s own vector for counter and key 0.
  const PhiloxBlock block = philox(0, 0);
  EXPECT_EQ(std::vector<std::uint32_t>(block.words, block.words + 4),
            (std::vector<std::uint32_t>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
}

TEST_P(Arrays, RandomNumbersAreAFunctionOfSeedAndPosition) {
  const auto draw = [&](const Distribution& distribution, std::int64_t count, std::uint64_t position) {
    Generator random(7, position);
    return NDArray::random(distribution, {count}, random, DType::f32, device());
  };
  const int before = threads();
  for (const Distribution::Kind kind :
       {Distribution::Kind::uniform, Distribution::Kind::normal, Distribution::Kind::bernoulli}) {
    const Distribution distribution{kind, kind == Distribution::Kind::bernoulli ? 0.3 : 0, 1};
    set_threads(1);
    const NDArray one = draw(distribution, 100001, 0);
    set_threads(2);
    EXPECT_TRUE(same(draw(distribution, 100001, 0), one));
    EXPECT_TRUE(same(draw(distribution, 1000, 400), one.slice(0, 400, 1400)));
    const double average = mean(Tensor(one.cast(exact()))).item();
    EXPECT_NEAR(average, kind == Distribution::Kind::uniform ? 0.5 : distribution.a, 0.01);
  }
  set_threads(before);
  const NDArray numbers = draw({Distribution::Kind::normal, 0, 1}, 100000, 0);
  EXPECT_NEAR(variance(Tensor(numbers)).item(), 1, 0.02);
  EXPECT_TRUE(contains(error_of([] { set_threads(0); }), {"0"}));
}

TEST_P(Arrays, GeneratorSetsPositionsAside) {
  Generator random(1);
  NDArray::random({}, {5}, random, DType::f32, device());
  EXPECT_EQ(random.reserve(1).position % 4, 0u);
  EXPECT_GE(random.position(), 9u);
  Generator a(5), b(5);
  EXPECT_EQ(a.child(3).seed(), b.child(3).seed());
  EXPECT_NE(a.child(3).seed(), a.child(4).seed());
  for (int i = 0; i < 1000; ++i) {
    const std::int64_t below = a.below(7);
    EXPECT_TRUE(below >= 0 && below < 7);
    const double uniform = a.uniform();
    EXPECT_TRUE(uniform >= 0 && uniform < 1);
  }
}

// --- memory, and for people ----------------------------------------------------------------------------

TEST_P(Arrays, MemoryIsCountedAsRequestedAndUsedAgain) {
  const MemoryStats start = device()->memory_stats();
  {
    const NDArray x = NDArray::zeros({1000}, DType::f32, device()), view = x.slice(0, 0, 10);
    EXPECT_EQ(device()->memory_stats().live, start.live + 4000);
    EXPECT_GE(device()->memory_stats().peak, start.live + 4000);
  }
  EXPECT_EQ(device()->memory_stats().live, start.live);
  const std::uint64_t asked = device()->memory_stats().system_allocations;
  for (int i = 0; i < 10; ++i) NDArray::zeros({1000 - i}, DType::f32, device());
  EXPECT_EQ(device()->memory_stats().system_allocations, asked);
  device()->trim_memory();
  EXPECT_EQ(device()->memory_stats().cached, 0u);
  EXPECT_EQ(device()->memory_stats().peak, device()->memory_stats().live);
}

TEST_P(Arrays, PrintedForPeople) {
  std::ostringstream text;
  text << array({1, 2.5, -3, 100}, {2, 2});
  EXPECT_EQ(text.str(),
            std::string(name_of(exact())) + "[2, 2] on " + device().name() + "\n[[  1, 2.5],\n [ -3, 100]]");
  std::ostringstream large;
  large << counted({1000, 1000});
  EXPECT_LT(large.str().size(), 1000u);
  EXPECT_NE(large.str().find("..."), std::string::npos);
  std::ostringstream other;
  other << NDArray() << ids({3}, {1}) << mask({1}, {}) << counted({0});
  EXPECT_TRUE(contains(other.str(), {"undefined", "[3]", "true", "[]"}));
}

TEST_P(Arrays, ItemWantsOneElement) {
  EXPECT_TRUE(contains(error_of([&] { counted({2}).item(); }), {"[2]"}));
  EXPECT_EQ(counted({2, 3}).item({1, -1}), 5);
  EXPECT_TRUE(contains(error_of([] { device_of("tpu"); }), {"tpu", "cpu"}));
}

}  // namespace
}  // namespace needle
