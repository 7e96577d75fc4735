#include "needle/ops/matmul.h"

#include "needle/counters.h"
#include "needle/ops/elementwise.h"
#include "needle/ops/epilogue.h"
#include "needle/ops/reduce.h"
#include "needle/ops/shape.h"

namespace needle {

namespace {

/// Adds a b to the sum of `input`, inside the product where no batch axis was broadcast.
void add_product(GradientSums& into, int input, const Shape& shape, const NDArray& a, const NDArray& b) {
  if (!into.needs(input)) return;
  if (matmul_shape(a.shape(), b.shape()) != shape) return into.add(input, sum_to(matmul(a, b), shape));
  bool first = false;
  NDArray& sum = into.sum(input, first);
  matmul_into(a, b, sum, !first);
}

/// Both operands have at least two axes.
struct MatmulOp final : Op {
  const char* name() const override { return "matmul"; }
  Reads reads() const override { return {3, 0}; }
  NDArrays compute(const NDArrays& inputs) override { return {matmul(inputs[0], inputs[1])}; }

  Tensors gradient(const Tensors& g, const Saved& saved, const Needs& needs) override {
    Tensors result(2);
    if (needs[0]) result[0] = summed(matmul(g[0], transpose(saved.input(1))), saved.input_shape(0));
    if (needs[1]) result[1] = summed(matmul(transpose(saved.input(0)), g[0]), saved.input_shape(1));
    return result;
  }

  void add_gradient(NDArrays g, const Saved& saved, GradientSums& into) override {
    add_product(into, 0, saved.input_shape(0), g[0], saved.input_array(1).transpose());
    add_product(into, 1, saved.input_shape(1), saved.input_array(0).transpose(), g[0]);
  }

  double operations(std::span<const NDArray> inputs, std::span<const NDArray> outputs) const override {
    return product_operations(inputs, outputs);
  }

 private:
  /// x summed over the batch axes along which an operand of `shape` was broadcast.
  static Tensor summed(const Tensor& x, const Shape& shape) {
    const int extra = x.rank() - shape.rank();
    Axes axes;
    for (int axis = 0; axis < x.rank(); ++axis) {
      if (axis < extra || (shape[axis - extra] == 1 && x.shape()[axis] != 1)) axes.push_back(axis);
    }
    return axes.empty() ? x : reshape(sum(x, axes), shape);
  }
};

/// x [rows, k], table [m, k].
struct MatmulTransposedOp final : Op {
  const char* name() const override { return "matmul_transposed"; }
  Reads reads() const override { return {3, 0}; }
  NDArrays compute(const NDArrays& inputs) override { return {matmul(inputs[0], inputs[1].transpose())}; }

  Tensors gradient(const Tensors& g, const Saved& saved, const Needs& needs) override {
    return {needs[0] ? matmul(g[0], saved.input(1)) : Tensor(),
            needs[1] ? matmul(transpose(g[0]), saved.input(0)) : Tensor()};
  }

  void add_gradient(NDArrays g, const Saved& saved, GradientSums& into) override {
    add_product(into, 0, saved.input_shape(0), g[0], saved.input_array(1));
    add_product(into, 1, saved.input_shape(1), g[0].transpose(), saved.input_array(0));
  }

  double operations(std::span<const NDArray> inputs, std::span<const NDArray> outputs) const override {
    return product_operations(inputs, outputs);
  }
};

/// Inputs: x [..., in], weight [in, out], then the bias [out] and the residual [..., out] if there are such.
struct LinearOp final : FusedOp {
  LinearOp(Epilogue with, bool biased, bool onto) : epilogue(with), has_bias(biased), has_residual(onto) {}
  Epilogue epilogue;
  bool has_bias, has_residual;
  NDArray slope;  // of the activation, for the gradient

  const char* name() const override {
    switch (epilogue) {
      case Epilogue::relu:
        return "linear_relu";
      case Epilogue::gelu:
        return "linear_gelu";
      case Epilogue::gelu_tanh:
        return "linear_gelu_tanh";
      case Epilogue::none:
        break;
    }
    return "linear";
  }

  Tensors definition(const Tensors& inputs) const override {
    const Tensor product = matmul(inputs[0], inputs[1]);
    const Tensor y = apply_epilogue(epilogue, has_bias ? product + inputs[2] : product);
    return {has_residual ? y + inputs.back() : y};
  }

  NDArrays compute(const NDArrays& inputs) override {
    const NDArray x = rows_of(inputs[0]).compact(), weight = inputs[1].compact();
    const NDArray y = NDArray::empty({x.size(0), weight.size(1)}, x.dtype(), x.device());
    const NDArray bias = has_bias ? inputs[2].compact() : NDArray();
    const NDArray residual = has_residual ? inputs.back().compact() : NDArray();
    if (epilogue != Epilogue::none && grad_enabled())
      slope = NDArray::empty(y.shape(), y.dtype(), y.device());
    y.device()->linear(epilogue, x.view(), weight.view(), bias.optional_view(), residual.optional_view(),
                       y.view(), slope.optional_view());
    Shape shape = inputs[0].shape();
    shape[shape.rank() - 1] = y.size(1);
    return {y.reshape(shape)};
  }

  void add_gradient(NDArrays g, const Saved& saved, GradientSums& into) override {
    if (has_residual && into.needs(2 + has_bias)) into.add(2 + has_bias, g[0]);
    const NDArray incoming = epilogue_gradient(rows_of(std::exchange(g[0], {})), slope,
                                               has_bias && into.needs(2) ? &into : nullptr, 2);
    bool first = false;
    if (into.needs(0)) {
      NDArray dx = rows_of(into.sum(0, first));
      matmul_into(incoming, saved.input_array(1).transpose(), dx, !first);
    }
    add_product(into, 1, saved.input_shape(1), rows_of(saved.input_array(0)).transpose(), incoming);
  }

  double operations(std::span<const NDArray> inputs, std::span<const NDArray> outputs) const override {
    return product_operations(inputs, outputs);
  }
  double gradient_operations(double forward, const Needs& needs) const override {
    return forward * (needs[0] + needs[1]);  // the bias's sum is no product
  }

 private:
  static NDArray rows_of(const NDArray& x) {
    std::int64_t rows = 1;
    for (int axis = 0; axis + 1 < x.rank(); ++axis) rows *= x.size(axis);
    return x.reshape({rows, x.size(-1)});
  }
};

/// [..., width] as [rows, width].
Tensor as_rows(const Tensor& x) {
  std::int64_t rows = 1;
  for (int axis = 0; axis + 1 < x.rank(); ++axis) rows *= x.shape()[axis];
  return reshape(x, {rows, x.size(-1)});
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  const Shape shape = matmul_shape(a.shape(), b.shape());
  if (b.rank() == 1) return reshape(matmul(a, unsqueeze(b, 1)), shape);
  if (a.rank() == 1) return reshape(matmul(unsqueeze(a, 0), b), shape);
  // A matrix that meets a batch meets all its rows in one product, and so does its gradient.
  if (a.rank() > 2 && b.rank() == 2) return reshape(apply_op<MatmulOp>({as_rows(a), b}), shape);
  return apply_op<MatmulOp>({a, b});
}

Tensor matmul_transposed(const Tensor& x, const Tensor& table) {
  require(x.rank() > 0 && table.rank() == 2 && x.size(-1) == table.size(1),
          "matmul_transposed: wants [..., k] x [m, k], got ", x.shape(), " x ", table.shape());
  require_same_dtype("matmul_transposed", x.array(), table.array());
  Shape shape = x.shape();
  shape[shape.rank() - 1] = table.size(0);
  return reshape(apply_op<MatmulTransposedOp>({as_rows(x), table}), shape);
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, Epilogue epilogue,
              const Tensor& residual) {
  require(x.rank() > 0 && weight.rank() == 2 && x.size(-1) == weight.size(0),
          "linear: wants [..., in] x [in, out], got ", x.shape(), " x ", weight.shape());
  if (!bias.defined() && epilogue == Epilogue::none && !residual.defined()) return matmul(x, weight);
  require(!bias.defined() || bias.shape() == Shape{weight.size(1)}, "linear: wants a bias of shape [",
          weight.size(1), "], got ", bias.defined() ? bias.shape() : Shape{});
  Tensors inputs{x, weight};
  if (bias.defined()) inputs.push_back(bias);
  if (residual.defined()) {
    Shape shape = x.shape();
    shape[shape.rank() - 1] = weight.size(1);
    require(residual.shape() == shape, "linear: wants a residual of shape ", shape, ", got ",
            residual.shape());
    inputs.push_back(residual);
  }
  for (const Tensor& other : inputs) require_same_dtype("linear", x.array(), other.array());
  return apply_op<LinearOp>(inputs, epilogue, bias.defined(), residual.defined());
}

}  // namespace needle
