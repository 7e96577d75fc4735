// Lesson 9: attention in five simple ops, and in one fused op.
//
// Each position asks (query), offers a description of itself (key) and something to take (value). A query's
// scores with all keys become weights by softmax, and it takes the weighted mean of the values. Written out,
// the weights are a [queries, keys] matrix, kept for the way back. The fused op goes over the keys in blocks,
// keeps one number a query (the logarithm of its sum of exponentials) and makes the weights again: the same
// function, other memory.
//
// Exercise: causal attention in simple ops: position t reads the positions up to t. Output and gradients must
// be those of attention() with options.causal. (answers/09_attention.h)
#include <cmath>
#include <cstdio>

#include "backends/clock.h"
#include "needle/inspect/agreement.h"
#include "needle/needle.h"

using namespace needle;

/// query, key and value [batch, heads, time, width].
Tensor simple_attention(const Tensor& query, const Tensor& key, const Tensor& value) {
  const double scale = 1 / std::sqrt(static_cast<double>(query.size(-1)));  // sums of `width` products
  const Tensor scores = matmul(query, transpose(key)) * scale;              // [batch, heads, queries, keys]
  const Tensor weights = softmax(scores);
  return matmul(weights, value);
}

using Attention = Tensor (*)(const Tensor&, const Tensor&, const Tensor&);
Tensor fused_attention(const Tensor& q, const Tensor& k, const Tensor& v) { return attention(q, k, v); }

Tensors some_inputs(std::int64_t time, DType dtype) {
  Generator random(1);
  const Distribution normal{Distribution::Kind::normal, 0, 1};
  Tensors inputs;
  for (int i = 0; i < 3; ++i)
    inputs.emplace_back(NDArray::random(normal, {1, 4, time, 32}, random, dtype), true);
  return inputs;
}

/// The output, and the gradients of query, key and value.
Tensors results_of(Attention attend, DType dtype) {
  const Tensors in = some_inputs(32, dtype);
  Tensors results{attend(in[0], in[1], in[2])};
  for (const Tensor& slope : gradients(sum(results[0] * results[0]), in)) results.push_back(slope);
  return results;
}

void show_cost(const char* name, Attention attend, std::int64_t time) {
  const Tensors in = some_inputs(time, DType::f32);
  const auto live = [] { return static_cast<double>(cpu()->memory_stats().live) / (1 << 20); };
  double milliseconds = 0, kept = 0;
  for (int run = 0; run < 2; ++run) {  // the first one fills the memory pool
    const double before = live(), start = now();
    const Tensor loss = sum(attend(in[0], in[1], in[2]));
    kept = live() - before;
    loss.backward();
    milliseconds = 1000 * (now() - start);
    for (Tensor x : in) x.clear_grad();
  }
  std::printf("  %9.0f   %-8s %8.2f MiB   %8.2f ms\n", static_cast<double>(time), name, kept, milliseconds);
}

int main() {
  std::printf(
      "how far the two are apart, relative\n            output   query's    key's      value's gradient\n");
  for (const DType dtype : {DType::f64, DType::f32}) {
    const Tensors simple = results_of(simple_attention, dtype), fused = results_of(fused_attention, dtype);
    std::printf("  %s  ", dtype == DType::f64 ? "float64" : "float32");
    for (std::size_t i = 0; i < simple.size(); ++i)
      std::printf("  %9.1e", relative_error(fused[i].array(), simple[i].array()));
    std::printf("\n");
  }
  std::printf("\n  positions   way       the graph keeps   there and back\n");
  for (const std::int64_t time : {128, 512, 1024}) {
    show_cost("simple", simple_attention, time);
    show_cost("fused", fused_attention, time);
  }
}
