// What only the CUDA backend has: memory that runs out, launches, recorded steps.
#include "tests/decoders.h"
#include "tests/on_devices.h"

#ifdef NEEDLE_TESTS_EMULATE
#include <fstream>

#include "needle/observer.h"
#include "needle/ops/ops.h"

#include "needle/train/training.h"
#include "tests/agree.h"
#include "tests/cuda_device.h"
#include "tests/temporary_folder.h"

namespace needle {
namespace {

TEST(CudaBackend, IsNamedAndCallsItselfEmulated) {
  EXPECT_EQ(cuda_device().name(), "cuda:0");
  EXPECT_EQ(device_of("cuda:0"), cuda_device());
  EXPECT_TRUE(
      contains(cuda_device()->description(), std::vector<std::string>{"emulated", "compute capability"}));
  EXPECT_TRUE(cuda_device()->is_emulated());
  EXPECT_FALSE(cpu()->is_emulated());
  EXPECT_TRUE(
      contains(error_of([] { device_of("cuda:7"); }), std::vector<std::string>{"cuda:7", "cpu, cuda:0"}));
}

TEST(CudaBackend, Float64IsComputedOnTheCpuAlone) {
  const NDArray x = some({3}).cast(DType::f64);
  for (const std::string& message :
       {error_of([&] { unary(Exp{}, x); }), error_of([&] { matmul(x, x); }),
        error_of([&] { reduce(Sum{}, x); }), error_of([&] { softmax(Tensor(x)); })}) {
    EXPECT_TRUE(contains(message, {"f64", "CPU", "cuda"}));
  }
  EXPECT_EQ(x.to(cpu()).dtype(), DType::f64);  // as storage it is fine
}

/// What `dtype` is refused for, each by its name; all arrays are of that type where they hold numbers.
std::vector<std::pair<std::string, std::function<void()>>> kernels_on(DType dtype) {
  const NDArray numbers = NDArray::zeros({64}, dtype, cuda_device()),
                whole = NDArray::zeros({64}, DType::i64, cuda_device());
  const auto view_of = [](const NDArray& x, const Shape& shape) {
    return x.slice(0, 0, shape.count()).reshape(shape).view();
  };
  const View m = view_of(numbers, {2, 4}), row = view_of(numbers, {4}), cube = view_of(numbers, {1, 2, 4}),
             weight = view_of(numbers, {1, 4, 4}), heads = view_of(numbers, {1, 1, 2, 4}), none;
  const View ids = view_of(whole, {2, 4}), labels = view_of(whole, {2}), positions = view_of(whole, {1, 2});
  const RecurrentArrays recurrent{
      cube, view_of(numbers, {4, 4}), none, view_of(numbers, {1, 4}), none, none, cube, none};
  const RecurrentGradients back{cube, none, cube, cube, view_of(numbers, {1, 4}), none};
  const AttentionArrays attended{heads, heads, heads, heads, view_of(numbers, {1, 1, 2})};
  Backend& cuda = *cuda_device();
  std::vector<std::pair<std::string, std::function<void()>>> all{
      {"causal_convolution",
       [=, &cuda] { cuda.causal_convolution(1, {}, cube, weight, none, none, cube, none); }},
      {"causal_convolution",
       [=, &cuda] { cuda.causal_convolution_gradient(1, cube, weight, cube, {cube}, {weight}); }},
      {"cross_entropy", [=, &cuda] { cuda.cross_entropy({}, m, labels, row); }},
      {"cross_entropy", [=, &cuda] { cuda.cross_entropy_gradient({}, m, labels, row, m); }},
      {"rotary", [=, &cuda] { cuda.rotary(10, false, 1, positions, heads, heads); }},
      {"recurrence", [=, &cuda] { cuda.recurrence(RecurrentCell::tanh, recurrent); }},
      {"recurrence", [=, &cuda] { cuda.recurrence_gradient(RecurrentCell::tanh, recurrent, back); }},
      {"scatter_add", [=, &cuda] { cuda.scatter_add(m, 1, ids, m); }},
      {"scatter_add_rows", [=, &cuda] { cuda.scatter_add_rows(m, labels, m); }},
      {"softmax", [=, &cuda] { cuda.softmax({}, m, m); }},
      {"softmax", [=, &cuda] { cuda.softmax_gradient({}, m, m, m); }},
      {"clip", [=, &cuda] { cuda.clip({}, std::vector{m}, numbers.view()); }},
      {"optimizer", [=, &cuda] {
         cuda.adam({}, std::vector{ParameterArrays{m, m, m, m, none}}, numbers.view());
       }}};
  if (is_half(dtype)) return all;
  const auto more = [&](const char* name, const std::function<void()>& call) {
    all.emplace_back(name, call);
  };
  more("argmax", [=, &cuda] { cuda.argmax(m, labels); });
  more("top_k", [=, &cuda] { cuda.top_k(m, m, ids); });
  more("attention", [=, &cuda] { cuda.attention({}, attended); });
  more("linear", [=, &cuda] { cuda.epilogue_gradient(none, m, m, {}); });
  more("norm", [=, &cuda] { cuda.norm({}, 1, m, none, none, m, row, row); });
  more("norm", [=, &cuda] { cuda.norm_gradient({}, m, none, row, row, m, {m}, {}, {}); });
  more("random", [=, &cuda] { cuda.random({}, {}, m); });
  more("dropout", [=, &cuda] { cuda.dropout(0.5, {}, m, none, m); });
  return all;
}

TEST(CudaBackend, KernelsRefuseTypesThatTheyDoNotCompute) {
  for (const auto& [name, call] : kernels_on(DType::f64))
    EXPECT_TRUE(contains(error_of(call), {name + ": wants f32, bf16 or f16", "f64", "CPU"})) << name;
  for (const auto& [name, call] : kernels_on(DType::f16))
    EXPECT_TRUE(contains(error_of(call), {name + ": wants f32, got f16"})) << name;
  const NDArray whole = NDArray::zeros({4}, DType::i32, cuda_device()), x = some({4});
  const View view = whole.view();
  EXPECT_TRUE(
      contains(error_of([&] { cuda_device()->random({}, {}, view); }), {"random", "floating", "i32"}));
  EXPECT_TRUE(contains(error_of([&] { cuda_device()->dropout(0.5, {}, view, {}, view); }),
                       {"dropout", "floating", "i32"}));
  EXPECT_TRUE(
      contains(error_of([&] { cuda_device()->random({Distribution::Kind::bernoulli}, {}, x.view()); }),
               {"random", "bool", "f32"}));
}

TEST(CudaBackend, DevicesAreNotMixed) {
  const NDArray here = some({2, 2}), there = NDArray::ones({2, 2});
  for (const std::string& message :
       {error_of([&] { binary(Add{}, here, there); }), error_of([&] { matmul(here, there); }),
        error_of([&] { Tensor(here) * Tensor(there); }),
        error_of([&] { gather_rows(Tensor(here), NDArray::zeros({1}, DType::i64)); }),
        error_of([&] { cross_entropy(Tensor(here), NDArray::zeros({2}, DType::i64)); }), error_of([&] {
          const Tensor q(here.reshape({1, 1, 2, 2}));
          AttentionOptions options;
          options.key_mask = NDArray::ones({1, 2}, DType::boolean);
          attention(q, q, q, options);
        })}) {
    EXPECT_TRUE(contains(message, std::vector<std::string>{"cpu", "cuda:0"}));
  }
}

TEST(CudaBackend, WrongIndicesAreToldOfWhenTheHostNextWaits) {
  const Tensor table(some({5, 3}));
  const NDArray rows =
      NDArray::from<std::int64_t>(std::vector<std::int64_t>{4, 0, 5, -1}, {4}, cuda_device());
  const Tensor picked = gather_rows(table, rows);  // does not wait, so does not know
  EXPECT_TRUE(contains(error_of([&] { picked.array().to_vector<float>(); }),
                       {"gather_rows", "index 5", "position 2", "[0, 5)"}));
  EXPECT_EQ(error_of([] { cuda_device()->synchronize(); }), "(no error)");  // told once
  EXPECT_EQ(picked.array().slice(0, 2, 4).to_vector<float>(), std::vector<float>(6));
  Backend& cuda = *cuda_device();
  const NDArray x = some({4, 3}), index = rows.unsqueeze(1).broadcast_to({4, 3}).copy(), sums = some({5, 3});
  const NDArray before = sums.copy();
  EXPECT_TRUE(contains(error_of([&] { cuda.scatter_add(x.view(), 0, index.view(), sums.view()); }),
                       {"scatter_add", "index 5", "position 6", "[0, 5)"}));
  EXPECT_TRUE(same(sums.slice(0, 1, 4), before.slice(0, 1, 4)));
}

// --- launches ------------------------------------------------------------------------------------------

TEST(CudaBackend, AttentionLaunchesNothingThatIsNotWanted) {
  for (const DType dtype : {DType::f32, DType::bf16}) {  // plain, and on tensor cores
    const NDArray x = some({1, 1, 4, 64}, dtype), y = x.copy(), log_sum = some({1, 1, 4}), first = x.copy(),
                  second = x.copy(), third = x.copy();
    const AttentionArrays arrays{x.view(), x.view(), x.view(), y.view(), log_sum.view()};
    EXPECT_EQ(launches_of([&] { cuda_device()->attention({}, arrays); }), 1u) << name_of(dtype);
    const auto launches_for = [&](const View& query, const View& key, const View& value) {
      const AttentionGradients gradients{x.view(), query, key, value, {}};
      return launches_of([&] { cuda_device()->attention_gradient({}, arrays, gradients); });
    };
    EXPECT_EQ(launches_for(first.view(), {}, {}), 2u) << name_of(dtype);
    EXPECT_EQ(launches_for({}, first.view(), {}), 2u) << name_of(dtype);
    EXPECT_EQ(launches_for({}, {}, first.view()), 2u) << name_of(dtype);
    EXPECT_EQ(launches_for(first.view(), second.view(), third.view()), 3u) << name_of(dtype);
  }
}

TEST(CudaBackend, ProductsLaunchNothingThatIsNotNeeded) {
  const auto launches_for = [](const Shape& a, const Shape& b, DType dtype) {
    const Tensor left(some(a, dtype)), right(some(b, dtype));
    return launches_of([&] { matmul(left, right); });
  };
  EXPECT_EQ(launches_for({2, 3}, {3, 5}, DType::f32), 1u);
  EXPECT_EQ(launches_for({2, 8, 8}, {2, 8, 8}, DType::bf16), 1u);
  // Operands and result by way of copies whose rows tensor cores take.
  EXPECT_EQ(launches_for({2, 3}, {3, 5}, DType::bf16), 4u);
  EXPECT_EQ(launches_for({0, 2, 3}, {0, 3, 5}, DType::f32), 0u);
  const NDArray x = some({2, 3}), weight = some({3, 5}), y = some({2, 5});
  EXPECT_EQ(launches_of([&] {
              cuda_device()->linear(Epilogue::none, x.view(), weight.view(), {}, {}, y.view(), {});
            }),
            1u);
}

TEST(CudaBackend, AProductIntoATransposedTargetIsTheSame) {
  const NDArray left = some({4, 3}), right = some({3, 5});
  for (const std::int64_t columns : {1, 5}) {
    const NDArray part = right.slice(1, 0, columns), target = some({columns, 4}).transpose();
    const NDArray wanted = some({4, columns});
    cuda_device()->matmul(left.view(), part.view(), wanted.view(), false);
    cuda_device()->matmul(left.view(), part.view(), target.view(), false);
    EXPECT_TRUE(same(target, wanted)) << columns;
    cuda_device()->matmul(left.view(), part.view(), target.view(), true);
    EXPECT_TRUE(agrees(target, binary(Add{}, wanted, wanted), 1e-6)) << columns;
  }
}

TEST(CudaBackend, EmptyCallsLaunchNothing) {
  Backend& cuda = *cuda_device();
  const View numbers = some({2, 0}).view(), none = some({0}).view();
  const NDArray two = NDArray::zeros({2}, DType::i64, cuda_device());
  const View no_ids = two.slice(0, 0, 0).view(), table = some({3, 0}).view();
  EXPECT_EQ(launches_of([&] {
              cuda.random({}, {}, none);
              const View steps = some({2, 3, 0}).view(), square = some({0, 0}).view();
              cuda.recurrence(RecurrentCell::tanh, {steps, square, {}, numbers, {}, {}, steps, {}});
              cuda.recurrence_gradient(RecurrentCell::tanh, {steps, square, {}, numbers, {}, {}, steps, {}},
                                       {steps, {}, steps, steps, numbers, {}});
              cuda.scatter_add_rows(numbers, two.view(), table);
              cuda.gather_rows(table, no_ids, some({0, 0}).view());
              cuda.cross_entropy({}, some({0, 4}).view(), no_ids, none);
            }),
            0u);
  const NDArray gradients = some({2, 4}), numbers_of_rows = NDArray::zeros({2}, DType::f64, cuda_device());
  EXPECT_EQ(launches_of([&] {  // of x alone
              const View x = gradients.view(), kept = numbers_of_rows.view();
              cuda.norm_gradient(NormKind::layer, x, {}, kept, kept, x, {x}, {}, {});
            }),
            1u);
}

TEST(CudaBackend, RandomStreamsBeginAnywhere) {
  const NDArray whole = some({12}), part = some({6});
  for (const std::uint64_t position : {0, 1, 3, 4}) {
    cuda_device()->random({}, {7, 0}, whole.view());
    cuda_device()->random({}, {7, position}, part.view());
    const auto first = static_cast<std::int64_t>(position);
    EXPECT_TRUE(same(part, whole.slice(0, first, first + 6))) << position;
  }
}

TEST(CudaBackend, TooManyRowsAreRefused) {
  NDArray one = NDArray::zeros({1}, DType::f32, cuda_device());
  View many = one.view();
  many.shape = {0x7fffffff, 1};
  many.strides = {0, 0};
  EXPECT_TRUE(contains(error_of([&] { cuda_device()->scatter_add_rows(many, many, many); }),
                       std::vector<std::string>{"scatter_add_rows", "too many"}));
}

TEST(CudaBackend, ProductsInTf32AreTold) {
  const auto description = [] { return CudaBackend(0).description(); };
  EXPECT_FALSE(contains(description(), "TF32"));
  setenv("NEEDLE_CUDA_TF32", "1", 1);
  EXPECT_TRUE(contains(description(), "TF32"));
  unsetenv("NEEDLE_CUDA_TF32");
}

// --- recordings ----------------------------------------------------------------------------------------

TEST(CudaBackend, ARecordedStepRefusesToWait) {
  const NDArray x = some({3});
  const std::pair<const char*, std::function<void()>> works[] = {
      {"a copy from the host", [] { NDArray::from<float>(std::vector<float>{1}, {1}, cuda_device()); }},
      {"a copy to the host", [&] { x.to_vector<float>(); }},
      {"a wait for the device", [] { cuda_device()->synchronize(); }}};
  for (const auto& [what, work] : works) {
    const std::unique_ptr<Recording> recording = cuda_device()->new_recording();
    recording->run(work, 0);
    const std::string message = error_of([&, &its_work = work] { recording->run(its_work, 0); });
    EXPECT_TRUE(contains(message, {"cuda", what, "being recorded"}));
    EXPECT_EQ(x.to_vector<float>().size(), 3u);  // nothing is recorded any more
  }
}

TEST(CudaBackend, MemoryOfARecordingOutlivesATrimAndARequestThatFails) {
  NDArray result = NDArray::zeros({1}, DType::f32, cuda_device());
  const std::unique_ptr<Recording> recording = cuda_device()->new_recording();
  const auto work = [&] {
    const NDArray once = unary(AddScalar{1}, result);
    result.assign(once);
  };
  const std::uint64_t before = emu::stats().graph_launches;
  for (int i = 0; i < 3; ++i) {
    recording->run(work, 0);
    cuda_device()->trim_memory();
    emu::fail_malloc(1);
    EXPECT_TRUE(
        contains(error_of([] { NDArray::empty({5 << 20}, DType::f32, cuda_device()); }), "(no error)"));
  }
  EXPECT_EQ(result.item(), 3);
  EXPECT_EQ(emu::stats().graph_launches - before, 2u);
}

TEST(CudaBackend, KernelsAreNotWaitedForWhileTheyAreRecorded) {
  setenv("NEEDLE_CUDA_SYNC", "1", 1);
  CudaBackend backend(0);
  unsetenv("NEEDLE_CUDA_SYNC");
  const View x{backend.allocate(16), DType::f32, {4}, {1}};
  const std::unique_ptr<Recording> recording = backend.new_recording();
  for (const double value : {1, 2, 2}) recording->run([&] { backend.fill(value, x); }, 0);
  std::vector<float> back(4);
  backend.copy_to_host(x.data, back.data(), 16);
  EXPECT_EQ(back, std::vector<float>(4, 2));
  backend.release(x.data, 16);
}

// --- memory --------------------------------------------------------------------------------------------

TEST(CudaBackend, OutOfMemorySaysWhatThereIsAndWhatToChange) {
  const NDArray kept = some({1 << 20});
  cuda_device()->trim_memory();
  emu::set_memory_limit(emu::stats().live_bytes + (1 << 20));
  const std::string message = error_of([] { NDArray::empty({1 << 20}, DType::f32, cuda_device()); });
  emu::set_memory_limit(std::size_t{1} << 40);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);  // no later launch is told of it
  EXPECT_TRUE(contains(
      message, {"4194304 bytes", "in use", "peak", "cuda:0 has", "free", "--accumulate", "--precision"}));
  EXPECT_EQ(kept.slice(0, 0, 1).to_vector<float>().size(), 1u);
}

TEST(CudaBackend, ARequestThatFailsIsTriedAgainWithoutTheCache) {
  cuda_device()->trim_memory();
  { const NDArray cached = some({1 << 20}); }
  EXPECT_GT(cuda_device()->memory_stats().cached, 0u);
  emu::fail_malloc(1);
  const NDArray x = NDArray::zeros({3 << 20}, DType::f32, cuda_device());
  EXPECT_EQ(cuda_device()->memory_stats().cached, 0u);
  EXPECT_EQ(x.slice(0, -1, 3 << 20).item(), 0);
}

TEST(CudaBackend, WhatAPastRecordingKeptIsThereForOthers) {
  cuda_device()->trim_memory();
  {
    const std::unique_ptr<Recording> recording = cuda_device()->new_recording();
    for (int i = 0; i < 2; ++i)
      recording->run([] { NDArray::zeros({1 << 20}, DType::f32, cuda_device()); }, 0);
  }
  const std::size_t kept = cuda_device()->memory_stats().cached;
  EXPECT_GE(kept, std::size_t{4} << 20);
  emu::fail_malloc(1);
  const NDArray x = NDArray::zeros({9 << 20}, DType::f32, cuda_device());
  EXPECT_LT(cuda_device()->memory_stats().cached, std::size_t{4} << 20);
  EXPECT_EQ(x.slice(0, -1, 9 << 20).item(), 0);
}

TEST(CudaBackend, ManyCopiesToTheDeviceArriveInTheirOrder) {
  std::vector<float> numbers(3 << 20);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i % 65521);
  std::vector<NDArray> arrays;
  for (const std::int64_t count : {5, 1 << 20, 3, 3 << 20, 700001, 1})
    arrays.push_back(NDArray::from(std::span<const float>(numbers.data(), static_cast<std::size_t>(count)),
                                   {count}, cuda_device()));
  for (const NDArray& array : arrays) {
    const std::vector<float> back = array.to_vector<float>();
    EXPECT_TRUE(std::equal(back.begin(), back.end(), numbers.begin())) << back.size();
  }
}

}  // namespace
}  // namespace needle
#endif
