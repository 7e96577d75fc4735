#include "apps/bench_floor.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "backends/clock.h"
#include "backends/cpu/gemm.h"
#include "backends/cpu/roofs.h"
#include "needle/counters.h"

namespace needle {

namespace {

NDArray random_matrix(std::int64_t rows, std::int64_t columns, Device device) {
  Generator random(3);
  return NDArray::random({Distribution::Kind::normal, 0, 1}, {rows, columns}, random, DType::f32, device);
}

/// y [n, m] = a [n, k] b [k, m], either one as the transpose of what lies in memory.
struct Product {
  std::int64_t n, m, k;
  bool left_transposed, right_transposed;
  auto operator<=>(const Product&) const = default;
  double operations() const {
    return 2.0 * static_cast<double>(n) * static_cast<double>(m) * static_cast<double>(k);
  }
};

/// The three products of a linear map from k to m numbers of `rows` rows.
void add_linear(std::map<Product, int>& products, std::int64_t rows, std::int64_t k, std::int64_t m,
                bool forward) {
  if (forward) {
    ++products[{rows, m, k, false, false}];
  } else {
    ++products[{rows, k, m, false, true}];
    ++products[{k, m, rows, true, false}];
  }
}

void add_products(std::map<Product, int>& products, const ProfiledOp& op) {
  const bool forward = op.phase == Phase::forward;
  // Backward, the incoming gradients come before the kept inputs.
  const auto input = [&](std::size_t i) -> const Shape& { return op.inputs[forward ? i : i + 1]; };
  // A loss in chunks takes its gradients in the forward pass.
  const bool in_chunks = op.op == "linear_cross_entropy";
  if (in_chunks || op.op == "matmul_transposed") {
    if (in_chunks && !forward) return;
    const std::int64_t rows = input(0)[0], k = input(0)[1], m = input(1)[0];
    if (forward) ++products[{rows, m, k, false, true}];
    if (!forward || in_chunks) {
      ++products[{rows, k, m, false, false}];
      ++products[{m, k, rows, true, false}];
    }
  } else if (op.op.starts_with("linear") || (op.op == "matmul" && input(1).rank() == 2)) {
    add_linear(products, input(0).count() / input(0).at(-1), input(1)[0], input(1)[1], forward);
  } else if (op.op == "recurrence") {
    const Shape& steps = forward ? op.inputs[0] : op.outputs[0];
    const std::int64_t width = op.outputs[forward ? 0 : 1].at(-1);
    add_linear(products, steps[0] * steps[1], forward ? width : op.outputs[1][0], steps[2], forward);
  } else if (op.op == "causal_convolution") {
    const Shape &x = input(0), &weight = input(1);
    add_linear(products, x[0] * x[1], weight[0] * weight[1], weight[2], forward);
  }
}

/// The least seconds that a product takes with any library.
double best_seconds(const Product& product, Device device) {
  const auto operand = [&](std::int64_t rows, std::int64_t columns, bool transposed) {
    return transposed ? random_matrix(columns, rows, device).transpose()
                      : random_matrix(rows, columns, device);
  };
  const NDArray a = operand(product.n, product.k, product.left_transposed),
                b = operand(product.k, product.m, product.right_transposed);
  NDArray y = NDArray::empty({product.n, product.m}, DType::f32, device);
  double best = 1e9;
  for (const Gemm library : available_gemms()) {
    const GemmScope scope(library);
    double spent = 0;
    for (int i = 0; i < 40 && (i < 4 || spent < 0.1); ++i) {
      const double start = now();
      matmul_into(a, b, y, false);
      device->synchronize();
      const double seconds = now() - start;
      spent += seconds;
      if (i > 0) best = std::min(best, seconds);
    }
  }
  return best;
}

}  // namespace

PeakProduct::PeakProduct(Device device)
    : device_(device),
      a_(random_matrix(kSize, kSize, device)),
      b_(random_matrix(kSize, kSize, device)),
      y_(NDArray::empty({kSize, kSize}, DType::f32, device)) {
  rate();
}

double PeakProduct::rate() {
  const double start = now();
  matmul_into(a_, b_, y_, false);
  device_->synchronize();
  return 2.0 * kSize * kSize * kSize / (now() - start);
}

nlohmann::json step_floor(const Work& work, const std::vector<ProfiledOp>& step, Device device) {
  std::map<Product, int> products;
  double attention = 0;
  for (const ProfiledOp& op : step) {
    add_products(products, op);
    if (op.op == "attention") attention += op.operations;
  }
  double seconds = 0;
  for (const auto& [product, times] : products) seconds += times * best_seconds(product, device);
  const double parameters = static_cast<double>(work.parameter_count()),
               bytes = 32 * parameters + 12 * static_cast<double>(work.logit_count());
  const double rate = peak_operation_rate(), of_attention = attention / rate,
               bandwidth = peak_bandwidth(static_cast<std::size_t>(std::max(16 * parameters, 1e6))),
               of_bytes = bytes / bandwidth;
  return {{"seconds", seconds + of_attention + of_bytes},
          {"products", seconds},
          {"attention", of_attention},
          {"bytes", of_bytes},
          {"operation_rate", rate},
          {"bandwidth", bandwidth}};
}

nlohmann::json op_rows(Work& work, Device device) {
  constexpr int kSteps = 5;
  Profiler profiler;
  {
    const ObserverScope watch(&profiler);
    for (int i = 0; i < kSteps; ++i) work.step();
  }
  device->synchronize();
  const double rate = peak_operation_rate(), bandwidth = peak_bandwidth(std::size_t{16} << 20);
  nlohmann::json rows = nlohmann::json::array();
  for (const ProfileRow& row : profile_table(profiler.ops())) {
    const double of_rate = is_product(row.op) ? row.operations / row.seconds / rate : 0,
                 of_bandwidth = row.bytes / row.seconds / bandwidth;
    rows.push_back({{"op", row.op},
                    {"phase", name_of(row.phase)},
                    {"calls", row.calls / kSteps},
                    {"seconds", row.seconds / kSteps},
                    {"operations", row.operations / kSteps},
                    {"bytes", row.bytes / kSteps},
                    {"share_of_roof", std::max(of_rate, of_bandwidth)},
                    {"roof", of_rate >= of_bandwidth ? "operations" : "bandwidth"}});
  }
  return rows;
}

}  // namespace needle
