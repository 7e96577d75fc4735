#include "needle/ops/index.h"

#include "needle/ops/elementwise.h"
#include "needle/ops/shape.h"

namespace needle {

namespace {

/// table [rows, width], ids [count]; the ids belong to the op.
struct GatherRowsOp final : Op {
  explicit GatherRowsOp(NDArray which) : ids(std::move(which)) {}
  NDArray ids;
  const char* name() const override { return "gather_rows"; }
  NDArrays kept() const override { return {ids}; }
  NDArrays compute(const NDArrays& inputs) override {
    const NDArray y = NDArray::empty({ids.count(), inputs[0].size(1)}, inputs[0].dtype(), inputs[0].device());
    y.device()->gather_rows(inputs[0].view(), ids.view(), y.view());
    return {y};
  }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    return {scatter_rows(g[0], ids, saved.input_shape(0)[0])};
  }
  void add_gradient(NDArrays g, const Saved&, GradientSums& into) override {
    bool first = false;
    NDArray& sum = into.sum(0, first);
    if (first) sum.device()->fill(0, sum.view());
    sum.device()->scatter_add_rows(g[0].view(), ids.view(), sum.mutable_view());
  }
};

struct ScatterRowsOp final : Op {
  ScatterRowsOp(NDArray which, std::int64_t count) : ids(std::move(which)), rows(count) {}
  NDArray ids;
  std::int64_t rows;
  const char* name() const override { return "scatter_rows"; }
  NDArrays kept() const override { return {ids}; }
  NDArrays compute(const NDArrays& inputs) override {
    const NDArray table = NDArray::zeros({rows, inputs[0].size(1)}, inputs[0].dtype(), inputs[0].device());
    table.device()->scatter_add_rows(inputs[0].view(), ids.view(), table.view());
    return {table};
  }
  Tensors gradient(const Tensors& g, const Saved&, const Needs&) override { return {gather_rows(g[0], ids)}; }
};

struct GatherOp final : Op {
  GatherOp(int along, NDArray which) : axis(along), index(std::move(which)) {}
  int axis;
  NDArray index;
  const char* name() const override { return "gather"; }
  NDArrays kept() const override { return {index}; }
  NDArrays compute(const NDArrays& inputs) override {
    const NDArray y = NDArray::empty(index.shape(), inputs[0].dtype(), inputs[0].device());
    y.device()->gather(inputs[0].view(), axis, index.view(), y.view());
    return {y};
  }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    return {scatter_add(g[0], axis, index, saved.input_shape(0))};
  }
};

struct ScatterAddOp final : Op {
  ScatterAddOp(int along, NDArray which, const Shape& to) : axis(along), index(std::move(which)), shape(to) {}
  int axis;
  NDArray index;
  Shape shape;
  const char* name() const override { return "scatter_add"; }
  NDArrays kept() const override { return {index}; }
  NDArrays compute(const NDArrays& inputs) override {
    const NDArray y = NDArray::zeros(shape, inputs[0].dtype(), inputs[0].device());
    y.device()->scatter_add(inputs[0].view(), axis, index.view(), y.view());
    return {y};
  }
  Tensors gradient(const Tensors& g, const Saved&, const Needs&) override {
    return {gather(g[0], axis, index)};
  }
};

void require_ids(const char* op, const Tensor& x, const NDArray& ids) {
  require_same_device(op, x.array(), ids);
  require(ids.dtype() == DType::i64, op, ": indices must be i64, got ", name_of(ids.dtype()));
}

/// Sizes of x and index must agree beside `axis`.
void require_index_fits(const char* op, const Shape& x, int axis, const Shape& index) {
  bool fits = x.rank() == index.rank() && x.rank() > 0;
  for (int i = 0; fits && i < x.rank(); ++i) fits = i == axis || x[i] == index[i];
  require(fits, op, ": shapes differ beside axis ", axis, ": ", x, " and index ", index);
}

}  // namespace

Tensor gather_rows(const Tensor& table, const NDArray& ids) {
  require(table.rank() == 2, "gather_rows: wants a table [rows, width], got ", table.shape());
  require_ids("gather_rows", table, ids);
  Shape shape = ids.shape();
  shape.push_back(table.size(1));
  return reshape(apply_op<GatherRowsOp>({table}, ids.reshape({ids.count()})), shape);
}

Tensor scatter_rows(const Tensor& x, const NDArray& ids, std::int64_t rows) {
  require_ids("scatter_rows", x, ids);
  require(x.rank() > 0 && x.array().count() == ids.count() * x.size(-1), "scatter_rows: ", x.shape(),
          " does not fit the ids ", ids.shape());
  return apply_op<ScatterRowsOp>({reshape(x, {ids.count(), x.size(-1)})}, ids.reshape({ids.count()}), rows);
}

Tensor gather(const Tensor& x, int axis, const NDArray& index) {
  axis = normalized_axis("gather", axis, x.rank());
  require_ids("gather", x, index);
  require_index_fits("gather", x.shape(), axis, index.shape());
  return apply_op<GatherOp>({x}, axis, index);
}

Tensor scatter_add(const Tensor& x, int axis, const NDArray& index, const Shape& shape) {
  axis = normalized_axis("scatter_add", axis, x.rank());
  require_ids("scatter_add", x, index);
  require(x.shape() == index.shape(), "scatter_add: values ", x.shape(), " and index ", index.shape(),
          " differ in shape");
  require_index_fits("scatter_add", shape, axis, index.shape());
  return apply_op<ScatterAddOp>({x}, axis, index, shape);
}

NDArray one_hot(const NDArray& ids, std::int64_t classes, DType dtype) {
  require(ids.dtype() == DType::i64, "one_hot: indices must be i64, got ", name_of(ids.dtype()));
  return binary(Equal{}, ids.unsqueeze(-1), NDArray::arange(classes, DType::i64, ids.device())).cast(dtype);
}

}  // namespace needle
