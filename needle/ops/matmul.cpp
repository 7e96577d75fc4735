#include "needle/ops/matmul.h"

#include "needle/counters.h"
#include "needle/ops/elementwise.h"
#include "needle/ops/epilogue.h"
#include "needle/ops/reduce.h"
#include "needle/ops/shape.h"
#include "needle/precision.h"

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

/// x [rows, k], table [m, k]. Where x is bf16 or f16, the table is rounded to that for the products, and y
/// has the table's type.
struct MatmulTransposedOp final : FusedOp {
  const char* name() const override { return "matmul_transposed"; }
  Tensors definition(const Tensors& inputs) const override {
    return {matmul(cast(inputs[0], inputs[1].dtype()), transpose(inputs[1]))};
  }
  NDArrays compute(const NDArrays& inputs) override {
    const NDArray &x = inputs[0], &table = inputs[1];
    NDArray y = NDArray::empty({x.size(0), table.size(0)}, table.dtype(), x.device());
    matmul_into(x, table.rounded(x.dtype()).transpose(), y, false);
    return {y};
  }

  void add_gradient(NDArrays g, const Saved& saved, GradientSums& into) override {
    const NDArray &x = saved.input_array(0), &table = saved.input_array(1);
    const NDArray incoming = g[0].cast(x.dtype());
    add_product(into, 0, saved.input_shape(0), incoming, table.rounded(x.dtype()));
    add_product(into, 1, saved.input_shape(1), incoming.transpose(), x);
  }

  double operations(std::span<const NDArray> inputs, std::span<const NDArray> outputs) const override {
    return product_operations(inputs, outputs);
  }
};

/// Inputs: x [..., in], weight [in, out], then the bias [out] and the residual [..., out] if there are such.
/// Where x is bf16 or f16, the weight is rounded to that for the products; y is of `result`.
struct LinearOp final : FusedOp {
  LinearOp(Epilogue with, bool biased, bool onto, DType as)
      : epilogue(with), has_bias(biased), has_residual(onto), result(as) {}
  Epilogue epilogue;
  bool has_bias, has_residual;
  DType result;
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

  NDArrays kept() const override { return {slope}; }

  Tensors definition(const Tensors& inputs) const override {
    const DType wide = computing(inputs[1].dtype());
    const Tensor product = matmul(cast(inputs[0], wide), cast(inputs[1], wide));
    const Tensor y = apply_epilogue(epilogue, has_bias ? product + inputs[2] : product);
    return {cast(has_residual ? y + cast(inputs.back(), wide) : y, result)};
  }

  NDArrays compute(const NDArrays& inputs) override {
    const NDArray x = rows_of(inputs[0]).compact(), weight = inputs[1].compact().rounded(x.dtype());
    const NDArray y = NDArray::empty({x.size(0), weight.size(1)}, result, x.device());
    const NDArray bias = has_bias ? inputs[2].compact() : NDArray();
    const NDArray residual = has_residual ? inputs.back().compact() : NDArray();
    if (epilogue != Epilogue::none && grad_enabled())
      slope = NDArray::empty(y.shape(), x.dtype(), y.device());
    y.device()->linear(epilogue, x.view(), weight.view(), bias.optional_view(), residual.optional_view(),
                       y.view(), slope.optional_view());
    Shape shape = inputs[0].shape();
    shape[shape.rank() - 1] = y.size(1);
    return {y.reshape(shape)};
  }

  void add_gradient(NDArrays g, const Saved& saved, GradientSums& into) override {
    const int residual = 2 + has_bias;
    if (has_residual && into.needs(residual)) into.add(residual, g[0].cast(saved.input_dtype(residual)));
    const NDArray &x = saved.input_array(0), &weight = saved.input_array(1);
    const NDArray incoming = epilogue_gradient(rows_of(std::exchange(g[0], {})), slope, x.dtype(),
                                               has_bias && into.needs(2) ? &into : nullptr, 2);
    bool first = false;
    if (into.needs(0)) {
      NDArray dx = rows_of(into.sum(0, first));
      matmul_into(incoming, weight.rounded(x.dtype()).transpose(), dx, !first);
    }
    add_product(into, 1, saved.input_shape(1), rows_of(x).transpose(), incoming);
  }

  double operations(std::span<const NDArray> inputs, std::span<const NDArray> outputs) const override {
    return product_operations(inputs, outputs);
  }
  double gradient_operations(double forward, const Needs& needs) const override {
    return forward * (needs[0] + needs[1]);  // the bias's sum is no product
  }
};

/// [..., width] as [rows, width].
Tensor as_rows(const Tensor& x) {
  std::int64_t rows = 1;
  for (int axis = 0; axis + 1 < x.rank(); ++axis) rows *= x.shape()[axis];
  return reshape(x, {rows, x.size(-1)});
}

}  // namespace

NDArray rows_of(const NDArray& x) {
  std::int64_t rows = 1;
  for (int axis = 0; axis + 1 < x.rank(); ++axis) rows *= x.size(axis);
  return x.reshape({rows, x.size(-1)});
}

Tensor matmul(const Tensor& a, const Tensor& b) {
  const Shape shape = matmul_shape(a.shape(), b.shape());
  if (b.rank() == 1) return reshape(matmul(a, unsqueeze(b, 1)), shape);
  if (a.rank() == 1) return reshape(matmul(unsqueeze(a, 0), b), shape);
  // A matrix that meets a batch meets all its rows in one product, and so does its gradient.
  if (a.rank() > 2 && b.rank() == 2) return reshape(apply_op<MatmulOp>({as_rows(a), b}), shape);
  return apply_op<MatmulOp>({a, b});
}

Tensor as_operand(const char* op, const Tensor& x, const Tensor& weight) {
  if (weight.dtype() == DType::f32 && is_half(x.dtype())) return x;
  require_same_dtype(op, x.array(), weight.array());
  return x.dtype() == DType::f32 ? cast(x, product_dtype()) : x;
}

Tensor matmul_transposed(const Tensor& x, const Tensor& table) {
  require(x.rank() > 0 && table.rank() == 2 && x.size(-1) == table.size(1),
          "matmul_transposed: wants [..., k] x [m, k], got ", x.shape(), " x ", table.shape());
  const Tensor operand = as_operand("matmul_transposed", x, table);
  Shape shape = x.shape();
  shape[shape.rank() - 1] = table.size(0);
  return reshape(apply_op<MatmulTransposedOp>({as_rows(operand), table}), shape);
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, Epilogue epilogue,
              const Tensor& residual, std::optional<DType> result) {
  require(x.rank() > 0 && weight.rank() == 2 && x.size(-1) == weight.size(0),
          "linear: wants [..., in] x [in, out], got ", x.shape(), " x ", weight.shape());
  const Tensor operand = as_operand("linear", x, weight);
  const DType wide = computing(weight.dtype());
  const DType dtype = result.value_or(residual.defined() ? residual.dtype() : operand.dtype());
  require(dtype == operand.dtype() || dtype == wide, "linear: a result of ", name_of(operand.dtype()), " x ",
          name_of(weight.dtype()), " cannot be ", name_of(dtype));
  if (!bias.defined() && epilogue == Epilogue::none && !residual.defined() &&
      operand.dtype() == weight.dtype() && dtype == operand.dtype())
    return matmul(x, weight);
  require(!bias.defined() || bias.shape() == Shape{weight.size(1)}, "linear: wants a bias of shape [",
          weight.size(1), "], got ", bias.defined() ? bias.shape() : Shape{});
  Tensors inputs{operand, weight};
  if (bias.defined()) inputs.push_back(bias);
  if (residual.defined()) {
    Shape shape = x.shape();
    shape[shape.rank() - 1] = weight.size(1);
    require(residual.shape() == shape, "linear: wants a residual of shape ", shape, ", got ",
            residual.shape());
    inputs.push_back(residual);
  }
  require(!bias.defined() || bias.dtype() == wide, "linear: wants a bias of ", name_of(wide), ", got ",
          bias.defined() ? name_of(bias.dtype()) : "");
  require(!residual.defined() || residual.dtype() == wide || residual.dtype() == operand.dtype(),
          "linear: wants a residual of ", name_of(wide), " or ", name_of(operand.dtype()), ", got ",
          residual.defined() ? name_of(residual.dtype()) : "");
  return apply_op<LinearOp>(inputs, epilogue, bias.defined(), residual.defined(), dtype);
}

}  // namespace needle
