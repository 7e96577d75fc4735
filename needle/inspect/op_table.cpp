#include "needle/inspect/op_table.h"

#include <algorithm>
#include <numeric>

#include "needle/ops/ops.h"

namespace needle {

/// In op_table_attention.cpp.
std::vector<OpCase> attention_cases();
/// In op_table_sequence.cpp.
std::vector<OpCase> sequence_cases();

namespace {

NDArray ids(const std::vector<std::int64_t>& values, const Shape& shape, const Tensor& like) {
  return NDArray::from(values, shape, like.device());
}

std::vector<OpCase> arithmetic_cases() {
  const Shape matrix{2, 3};
  return {
      {"add, broadcast", {matrix, {3}}, [](const Tensors& x) { return x[0] + x[1]; }},
      {"add_scalar", {matrix}, [](const Tensors& x) { return 2.5 + x[0]; }},
      {"subtract, broadcast", {{2, 1}, {1, 3}}, [](const Tensors& x) { return x[0] - x[1]; }},
      {"subtract, from a number", {matrix}, [](const Tensors& x) { return 2.5 - x[0]; }},
      {"multiply, broadcast", {{2, 1, 3}, {4, 1}}, [](const Tensors& x) { return x[0] * x[1]; }},
      {"multiply, by itself", {matrix}, [](const Tensors& x) { return x[0] * x[0]; }},
      {"multiply_scalar", {matrix}, [](const Tensors& x) { return -1.5 * x[0]; }},
      {"divide, broadcast", {{3}, {2, 3}}, [](const Tensors& x) { return x[0] / x[1]; }, {}, 0.5, 2},
      {"divide, a number", {matrix}, [](const Tensors& x) { return 3.0 / x[0]; }, {}, -2, -0.5},
      {"divide, by a number", {matrix}, [](const Tensors& x) { return x[0] / 3.0; }},
      {"negate", {matrix}, [](const Tensors& x) { return -x[0]; }},
      {"power, broadcast", {matrix, {3}}, [](const Tensors& x) { return power(x[0], x[1]); }, {}, 0.5, 2.2},
      {"power_scalar, square", {matrix}, [](const Tensors& x) { return power(x[0], 2); }},
      {"power_scalar, cube", {matrix}, [](const Tensors& x) { return power(x[0], 3); }},
      {"power_scalar, root", {matrix}, [](const Tensors& x) { return power(x[0], 0.5); }, {}, 0.5, 2},
      {"power_scalar, negative", {matrix}, [](const Tensors& x) { return power(x[0], -1.5); }, {}, 0.5, 2},
      {"maximum, broadcast", {{4, 3}, {3}}, [](const Tensors& x) { return maximum(x[0], x[1]); }},
      {"minimum, broadcast", {{4, 3}, {4, 1}}, [](const Tensors& x) { return minimum(x[0], x[1]); }},
      {"gradient_product", {matrix, matrix}, [](const Tensors& x) { return gradient_product(x[0], x[1]); }},
      {"where, broadcast",
       {matrix, {2, 1}},
       [](const Tensors& x) { return where(greater(x[0], constant_like(x[0], 0)), exp(x[0]), x[1]); }},
  };
}

std::vector<OpCase> function_cases() {
  const Shape few{7};
  return {
      {"exp", {few}, [](const Tensors& x) { return exp(x[0]); }},
      {"log", {few}, [](const Tensors& x) { return log(x[0]); }, {}, 0.5, 3},
      {"sqrt", {few}, [](const Tensors& x) { return sqrt(x[0]); }, {}, 0.5, 3},
      {"tanh", {few}, [](const Tensors& x) { return tanh(x[0]); }, {}, -3, 3},
      {"sin", {few}, [](const Tensors& x) { return sin(x[0]); }, {}, -4, 4},
      {"cos", {few}, [](const Tensors& x) { return cos(x[0]); }, {}, -4, 4},
      {"erf", {few}, [](const Tensors& x) { return erf(x[0]); }, {}, -2.5, 2.5},
      {"sigmoid", {few}, [](const Tensors& x) { return sigmoid(x[0]); }, {}, -5, 5},
      {"relu", {few}, [](const Tensors& x) { return relu(x[0]); }},
      {"gelu", {few}, [](const Tensors& x) { return gelu(x[0]); }, {}, -4, 4},
      {"gelu_tanh", {few}, [](const Tensors& x) { return gelu(x[0], GeluForm::tanh); }, {}, -4, 4},
      {"silu", {few}, [](const Tensors& x) { return silu(x[0]); }, {}, -5, 5},
      {"softplus", {few}, [](const Tensors& x) { return softplus(x[0]); }, {}, -5, 5},
      {"abs", {few}, [](const Tensors& x) { return abs(x[0]); }},
      {"clamp", {few}, [](const Tensors& x) { return clamp(x[0], -0.7, 0.8); }},
      {"cast", {few}, [](const Tensors& x) { return cast(exp(x[0]), x[0].dtype()); }},
  };
}

std::vector<OpCase> reduction_cases() {
  const Shape cube{2, 3, 4};
  return {
      {"sum, all", {cube}, [](const Tensors& x) { return sum(x[0] * x[0]); }},
      {"sum, axes 0 and 2",
       {cube},
       [](const Tensors& x) {
         return sum(x[0], {0, -1});
       }},
      {"mean, axis 1 kept", {cube}, [](const Tensors& x) { return mean(x[0], {1}, true); }},
      {"variance, all", {cube}, [](const Tensors& x) { return variance(x[0]); }},
      {"variance, axis 1, unbiased", {cube}, [](const Tensors& x) { return variance(x[0], {1}, false, 1); }},
      {"max, all", {cube}, [](const Tensors& x) { return max(x[0]); }},
      {"max, axis 1", {cube}, [](const Tensors& x) { return max(x[0], {1}); }},
      {"min, axes 0 and 2 kept",
       {cube},
       [](const Tensors& x) {
         return min(x[0], {0, 2}, true);
       }},
      {"logsumexp, all", {cube}, [](const Tensors& x) { return logsumexp(x[0]); }},
      {"logsumexp, axis 1", {cube}, [](const Tensors& x) { return logsumexp(x[0], {1}); }},
      {"cumulative_sum", {cube}, [](const Tensors& x) { return cumulative_sum(x[0], 1); }},
  };
}

std::vector<OpCase> product_cases() {
  const auto product = [](const Tensors& x) { return matmul(x[0], x[1]); };
  const auto plus_bias = [](const Tensors& x) { return matmul(x[0], x[1]) + x[2]; };
  return {
      {"matmul", {{3, 4}, {4, 2}}, product},
      {"matmul, batched", {{2, 3, 4}, {2, 4, 2}}, product},
      {"matmul, broadcast batches", {{2, 1, 2, 3}, {3, 3, 2}}, product},
      {"matmul, batch by matrix", {{2, 3, 4}, {4, 2}}, product},
      {"matmul, matrix by batch", {{3, 4}, {2, 4, 2}}, product},
      {"matmul, vectors", {{4}, {4}}, product},
      {"matmul, vector by batch", {{4}, {2, 4, 3}}, product},
      {"matmul, batch by vector", {{2, 3, 4}, {4}}, product},
      {"matmul, transposed operands",
       {{4, 3}, {2, 4}},
       [](const Tensors& x) { return matmul(transpose(x[0]), transpose(x[1])); }},
      {"matmul, by itself", {{3, 3}}, [](const Tensors& x) { return matmul(x[0], x[0]); }},
      {"matmul_transposed",
       {{2, 3, 4}, {5, 4}},
       [](const Tensors& x) { return matmul_transposed(x[0], x[1]); },
       [](const Tensors& x) { return matmul(x[0], transpose(x[1])); }},
      {"linear",
       {{2, 3, 4}, {4, 2}, {2}},
       [](const Tensors& x) { return linear(x[0], x[1], x[2]); },
       plus_bias},
      {"linear_gelu, a batch",
       {{2, 3, 4}, {4, 2}, {2}},
       [](const Tensors& x) { return linear(x[0], x[1], x[2], Epilogue::gelu); },
       [](const Tensors& x) { return gelu(matmul(x[0], x[1]) + x[2]); }},
      {"linear_gelu_tanh, no bias",
       {{3, 4}, {4, 2}},
       [](const Tensors& x) { return linear(x[0], x[1], {}, Epilogue::gelu_tanh); },
       [](const Tensors& x) { return gelu(matmul(x[0], x[1]), GeluForm::tanh); }},
      {"linear_relu",
       {{3, 4}, {4, 2}, {2}},
       [](const Tensors& x) { return linear(x[0], x[1], x[2], Epilogue::relu); },
       [](const Tensors& x) { return relu(matmul(x[0], x[1]) + x[2]); }},
      {"linear, onto a residual",
       {{2, 3, 4}, {4, 2}, {2}, {2, 3, 2}},
       [](const Tensors& x) { return linear(x[0], x[1], x[2], Epilogue::none, x[3]); },
       [](const Tensors& x) { return matmul(x[0], x[1]) + x[2] + x[3]; }},
      {"linear_relu, onto its input, no bias",
       {{3, 4}, {4, 4}},
       [](const Tensors& x) { return linear(x[0], x[1], {}, Epilogue::relu, x[0]); },
       [](const Tensors& x) { return relu(matmul(x[0], x[1])) + x[0]; }},
      {"linear, no bias", {{3, 4}, {4, 2}}, [](const Tensors& x) { return linear(x[0], x[1]); }, product},
      {"linear, one row",
       {{4}, {4, 2}, {2}},
       [](const Tensors& x) { return linear(x[0], x[1], x[2]); },
       plus_bias},
  };
}

std::vector<OpCase> shape_cases() {
  const Shape cube{2, 3, 4}, matrix{3, 4};
  return {
      {"reshape",
       {cube},
       [](const Tensors& x) {
         return reshape(x[0], {4, -1});
       }},
      {"permute",
       {cube},
       [](const Tensors& x) {
         return permute(x[0], {2, 0, -2});
       }},
      {"transpose", {cube}, [](const Tensors& x) { return transpose(x[0], 0, -1); }},
      {"broadcast_to",
       {{3, 1}},
       [](const Tensors& x) {
         return broadcast_to(x[0], {2, 3, 4});
       }},
      {"slice", {cube}, [](const Tensors& x) { return slice(x[0], -1, 1, 3) * slice(x[0], -1, 0, 2); }},
      {"slice, every other, backwards", {cube}, [](const Tensors& x) { return slice(x[0], 2, -1, -5, -2); }},
      {"unslice",
       {{2, 2}},
       [](const Tensors& x) {
         return unslice(x[0], {2, 5}, 1, 1, 5, 2);
       }},
      {"flip",
       {cube},
       [](const Tensors& x) {
         return flip(x[0], {0, 2});
       }},
      {"unsqueeze and squeeze",
       {matrix},
       [](const Tensors& x) { return squeeze(unsqueeze(x[0], -1) * 2.0, 2); }},
      {"concatenate",
       {{2, 3}, {2, 1}},
       [](const Tensors& x) {
         return concatenate({x[0], x[1], x[0]}, 1);
       }},
      {"stack",
       {matrix, matrix},
       [](const Tensors& x) {
         return stack({x[0], x[1]}, 1);
       }},
      {"split",
       {{2, 6}},
       [](const Tensors& x) {
         const Tensors parts = split(x[0], {2, 3, 1}, 1);
         return parts[0] * parts[2];  // the middle one is not used
       }},
      {"pad",
       {matrix},
       [](const Tensors& x) {
         return pad(x[0], {{1, 0}, {0, 2}}, 7);
       }},
      {"lower_triangle", {cube}, [](const Tensors& x) { return lower_triangle(x[0], 1); }},
      {"upper_triangle", {cube}, [](const Tensors& x) { return upper_triangle(x[0], -1); }},
      {"gather_rows",
       {{4, 3}},
       [](const Tensors& x) {
         return gather_rows(x[0], ids({1, 3, 1, 0}, {2, 2}, x[0]));
       }},
      {"scatter_rows",
       {{4, 3}},
       [](const Tensors& x) {
         return scatter_rows(x[0], ids({1, 2, 1, 4}, {4}, x[0]), 5);
       }},
      {"gather",
       {{3, 4}},
       [](const Tensors& x) {
         return gather(x[0], 0, ids({2, 2, 0, 1, 0, 1, 2, 2}, {2, 4}, x[0]));
       }},
      {"scatter_add",
       {{2, 3}},
       [](const Tensors& x) {
         return scatter_add(x[0], 1, ids({4, 0, 4, 1, 1, 1}, {2, 3}, x[0]), {2, 5});
       }},
  };
}

OpCase cross_entropy_case(const char* name, double smoothing) {
  const auto labels = [](const Tensors& x) { return ids({2, -100, 0, 4}, {2, 2}, x[0]); };
  return {name,
          {{2, 2, 5}},
          [=](const Tensors& x) {
            return cross_entropy_rows(x[0], labels(x), {-100, smoothing});
          },
          [=](const Tensors& x) {
            const Tensor rows = cross_entropy_rows_definition(reshape(x[0], {4, 5}), labels(x).reshape({4}),
                                                              {-100, smoothing});
            return reshape(rows, {2, 2});
          }};
}

OpCase linear_cross_entropy_case(const char* name, double smoothing, std::int64_t chunk) {
  const auto labels = [](const Tensors& x) { return ids({2, -100, 0, 4}, {2, 2}, x[0]); };
  const LossOptions options{{-100, smoothing}, 0};
  return {name,
          {{2, 2, 3}, {5, 3}, {5}},
          [=](const Tensors& x) { return linear_cross_entropy(x[0], x[1], x[2], labels(x), options, chunk); },
          [=](const Tensors& x) {
            return cross_entropy(matmul_transposed(x[0], x[1]) + x[2], labels(x), options);
          }};
}

std::vector<OpCase> row_cases() {
  const Shape rows{2, 3, 5}, width{5};
  const auto normed = [](const Tensors& x) { return layer_norm(x[0], x[1], x[2]); };
  return {
      {"softmax",
       {rows},
       [](const Tensors& x) { return softmax(x[0]); },
       [](const Tensors& x) { return softmax_definition(x[0]); }},
      {"softmax, axis 0",
       {{4, 3}},
       [](const Tensors& x) { return softmax(x[0], 0); },
       [](const Tensors& x) { return transpose(softmax_definition(transpose(x[0]))); }},
      {"log_softmax",
       {rows},
       [](const Tensors& x) { return log_softmax(x[0]); },
       [](const Tensors& x) { return log_softmax_definition(x[0]); }},
      {"layer_norm",
       {rows, width, width},
       normed,
       [](const Tensors& x) { return layer_norm_definition(x[0], x[1], x[2], 1e-5); }},
      {"layer_norm, plain",
       {rows},
       [](const Tensors& x) { return layer_norm(x[0], {}, {}, 0.1); },
       [](const Tensors& x) { return layer_norm_definition(x[0], {}, {}, 0.1); }},
      {"layer_norm, bias alone",
       {rows, width},
       [](const Tensors& x) { return layer_norm(x[0], {}, x[1]); },
       [](const Tensors& x) { return layer_norm_definition(x[0], {}, x[1], 1e-5); }},
      {"rms_norm",
       {rows, width},
       [](const Tensors& x) { return rms_norm(x[0], x[1]); },
       [](const Tensors& x) { return rms_norm_definition(x[0], x[1], 1e-5); }},
      {"rms_norm, plain",
       {{5}},
       [](const Tensors& x) { return rms_norm(x[0], {}, 0.1); },
       [](const Tensors& x) { return rms_norm_definition(x[0], {}, 0.1); }},
      cross_entropy_case("cross_entropy_rows", 0),
      cross_entropy_case("cross_entropy_rows, smoothed", 0.1),
      {"cross_entropy",
       {{4, 5}},
       [](const Tensors& x) {
         return cross_entropy(x[0], ids({1, 7, 0, 1}, {4}, x[0]), {{7, 0.2}, 0});
       }},
      linear_cross_entropy_case("linear_cross_entropy", 0, 0),
      linear_cross_entropy_case("linear_cross_entropy, smoothed, a row at a time", 0.1, 1),
      linear_cross_entropy_case("linear_cross_entropy, uneven chunks", 0, 3),
      {"linear_cross_entropy, a transposed table, no bias",
       {{4, 3}, {3, 5}},
       [](const Tensors& x) {
         return linear_cross_entropy(x[0], transpose(x[1]), {}, ids({1, 7, 0, 1}, {4}, x[0]), {{7, 0}, 0},
                                     2) *
                3;
       },
       [](const Tensors& x) {
         return cross_entropy(matmul(x[0], x[1]), ids({1, 7, 0, 1}, {4}, x[0]), {{7, 0}, 0}) * 3;
       }},
      {"dropout",
       {{4, 5}},
       [](const Tensors& x) {
         Generator random(11);
         return dropout(x[0], 0.4, random);
       },
       [](const Tensors& x) {
         Generator random(11);
         const Tensor draw(NDArray::random({}, x[0].shape(), random, DType::f32, x[0].device()));
         return where(greater_equal(draw, constant_like(draw, 0.4)), x[0] / 0.6, constant_like(x[0], 0));
       }},
      {"dropout, onto a residual",
       {{4, 5}, {4, 5}},
       [](const Tensors& x) {
         Generator random(11);
         return dropout(x[0], 0.4, random, x[1]);
       },
       [](const Tensors& x) {
         Generator random(11);
         return dropout(x[0], 0.4, random) + x[1];
       }},
      {"checkpoint",
       {{3, 4}, {4, 2}},
       [](const Tensors& x) {
         // The second input is captured, not passed.
         return checkpoint([w = x[1]](const Tensors& in) { return Tensors{tanh(matmul(in[0], w))}; },
                           {x[0]})[0];
       },
       [](const Tensors& x) { return tanh(matmul(x[0], x[1])); }},
  };
}

}  // namespace

std::vector<OpCase> op_table() {
  std::vector<OpCase> all;
  for (const auto& part : {arithmetic_cases(), function_cases(), reduction_cases(), product_cases(),
                           shape_cases(), row_cases(), attention_cases(), sequence_cases()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

NDArrays inputs_of(const OpCase& op, Device device, DType dtype) {
  std::int64_t count = 0;
  for (const Shape& shape : op.shapes) count += shape.count();
  std::vector<double> numbers;
  for (std::int64_t i = 0; i < count; ++i) {
    numbers.push_back(op.low +
                      (op.high - op.low) * (static_cast<double>(i) + 0.37) / static_cast<double>(count));
  }
  Generator(77).shuffle(numbers);
  NDArrays result;
  auto next = numbers.begin();
  for (const Shape& shape : op.shapes) {
    const std::vector<double> own(next, next + shape.count());
    next += shape.count();
    result.push_back(NDArray::from(own, shape, device).cast(dtype));
  }
  return result;
}

}  // namespace needle
