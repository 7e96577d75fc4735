// Kernels on whole arrays: shapes are checked here, once, and results allocated.
#include "needle/ndarray.h"

namespace needle {

void require_same_device(const char* op, const NDArray& a, const NDArray& b) {
  require(a.device() == b.device(), op, ": operands are on different devices: ", a.device().name(), " and ",
          b.device().name());
}

void require_same_dtype(const char* op, const NDArray& a, const NDArray& b) {
  require(a.dtype() == b.dtype(), op, ": operands have different types: ", name_of(a.dtype()), " and ",
          name_of(b.dtype()), "; cast one of them");
}

NDArray unary(const UnaryOp& op, const NDArray& x) {
  const NDArray y = NDArray::empty(x.shape(), x.dtype(), x.device());
  x.device()->unary(op, x.view(), y.view());
  return y;
}

NDArray binary(const BinaryOp& op, const NDArray& a, const NDArray& b) {
  const char* name = std::visit([](auto f) { return decltype(f)::kName; }, op);
  require_same_device(name, a, b);
  require_same_dtype(name, a, b);
  const Shape shape = broadcast_shape(name, a.shape(), b.shape());
  const NDArray y = NDArray::empty(shape, compares(op) ? DType::boolean : a.dtype(), a.device());
  a.device()->binary(op, a.broadcast_to(shape).view(), b.broadcast_to(shape).view(), y.view());
  return y;
}

NDArray select(const NDArray& condition, const NDArray& a, const NDArray& b) {
  require(condition.dtype() == DType::boolean, "where: the condition must be bool, got ",
          name_of(condition.dtype()));
  require_same_device("where", condition, a);
  require_same_device("where", a, b);
  require_same_dtype("where", a, b);
  const Shape shape =
      broadcast_shape("where", broadcast_shape("where", a.shape(), b.shape()), condition.shape());
  const NDArray y = NDArray::empty(shape, a.dtype(), a.device());
  a.device()->select(condition.broadcast_to(shape).view(), a.broadcast_to(shape).view(),
                     b.broadcast_to(shape).view(), y.view());
  return y;
}

Shape reduced_shape(const char* op, const Shape& shape, const Axes& axes, bool keep) {
  std::vector<bool> reduced(static_cast<std::size_t>(shape.rank()), axes.empty());
  for (const int given : axes) {
    const int axis = normalized_axis(op, given, shape.rank());
    if (shape.rank() > 0) reduced[static_cast<std::size_t>(axis)] = true;
  }
  Shape result;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (!reduced[static_cast<std::size_t>(axis)])
      result.push_back(shape[axis]);
    else if (keep)
      result.push_back(1);
  }
  return result;
}

NDArray reduce(const ReduceOp& op, const NDArray& x, const Axes& axes, bool keep) {
  const char* name = std::visit([](auto f) { return decltype(f)::kName; }, op);
  const NDArray y = NDArray::empty(reduced_shape(name, x.shape(), axes, true), x.dtype(), x.device());
  x.device()->reduce(op, x.view(), y.view());
  return keep ? y : y.reshape(reduced_shape(name, x.shape(), axes, false));
}

NDArray sum_to(const NDArray& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  const int extra = x.rank() - shape.rank();
  Axes axes;
  for (int axis = 0; axis < x.rank(); ++axis) {
    if (axis < extra || (shape[axis - extra] == 1 && x.shape()[axis] != 1)) axes.push_back(axis);
  }
  return axes.empty() ? x.reshape(shape) : reduce(Sum{}, x, axes).reshape(shape);
}

Shape matmul_shape(const Shape& a, const Shape& b) {
  require(a.rank() > 0 && b.rank() > 0, "matmul: operands need at least one axis: ", a, " x ", b);
  require(a.at(-1) == b.at(b.rank() == 1 ? -1 : -2), "matmul: inner sizes differ: ", a, " x ", b);
  Shape batch_a = a, batch_b = b;
  for (int axis = std::min(2, a.rank()); axis > 0; --axis) batch_a.erase(batch_a.rank() - 1);
  for (int axis = std::min(2, b.rank()); axis > 0; --axis) batch_b.erase(batch_b.rank() - 1);
  Shape result = broadcast_shape("matmul", batch_a, batch_b);
  if (a.rank() > 1) result.push_back(a.at(-2));
  if (b.rank() > 1) result.push_back(b.at(-1));
  return result;
}

namespace {

/// x with its batch axes broadcast to those of `product`, which has two axes more.
View with_batch_of(const NDArray& x, const Shape& product) {
  Shape shape = product;
  shape[product.rank() - 2] = x.size(-2);
  shape[product.rank() - 1] = x.size(-1);
  return x.broadcast_to(shape).view();
}

}  // namespace

void matmul_into(const NDArray& a, const NDArray& b, NDArray& into, bool accumulate) {
  require_same_device("matmul", a, b);
  require_same_dtype("matmul", a, b);
  require(is_floating(a.dtype()), "matmul: wants a floating type, got ", name_of(a.dtype()));
  require(into.dtype() == a.dtype() || into.dtype() == computing(a.dtype()), "matmul: a product of ",
          name_of(a.dtype()), " cannot be ", name_of(into.dtype()));
  require(into.shape() == matmul_shape(a.shape(), b.shape()), "matmul: the product of ", a.shape(), " x ",
          b.shape(), " does not fit ", into.shape());
  const NDArray matrix_a = a.rank() == 1 ? a.unsqueeze(0) : a, matrix_b = b.rank() == 1 ? b.unsqueeze(1) : b;
  NDArray product = into;
  if (a.rank() == 1) product = product.unsqueeze(b.rank() == 1 ? 0 : -2);
  if (b.rank() == 1) product = product.unsqueeze(-1);
  product.device()->matmul(with_batch_of(matrix_a, product.shape()), with_batch_of(matrix_b, product.shape()),
                           accumulate ? product.mutable_view() : product.view(), accumulate);
}

NDArray matmul(const NDArray& a, const NDArray& b) {
  NDArray result = NDArray::empty(matmul_shape(a.shape(), b.shape()), a.dtype(), a.device());
  matmul_into(a, b, result, false);
  return result;
}

void add_into(const NDArray& x, NDArray& into) {
  require_same_device("add", x, into);
  require_same_dtype("add", x, into);
  const View target = into.mutable_view();
  into.device()->binary(Add{}, target, x.broadcast_to(into.shape()).view(), target);
}

}  // namespace needle
