#include "needle/ops/softmax.h"

#include "needle/ops/elementwise.h"
#include "needle/ops/reduce.h"
#include "needle/ops/shape.h"

namespace needle {

Tensor softmax_definition(const Tensor& x) {
  const Tensor e = exp(x - max(x, {-1}, true).detach());
  return e / sum(e, {-1}, true);
}

Tensor log_softmax_definition(const Tensor& x) {
  const Tensor shifted = x - max(x, {-1}, true).detach();
  return shifted - log(sum(exp(shifted), {-1}, true));
}

namespace {

struct SoftmaxOp final : FusedOp {
  explicit SoftmaxOp(SoftmaxForm which) : form(which) {}
  SoftmaxForm form;

  const char* name() const override { return form == SoftmaxForm::probabilities ? "softmax" : "log_softmax"; }
  Reads reads() const override { return {1, 1}; }

  Tensors definition(const Tensors& inputs) const override {
    return {form == SoftmaxForm::probabilities ? softmax_definition(inputs[0])
                                               : log_softmax_definition(inputs[0])};
  }

  NDArrays compute(const NDArrays& inputs) override {
    const NDArray x = inputs[0].compact(), y = NDArray::empty(x.shape(), x.dtype(), x.device());
    x.device()->softmax(form, x.view(), y.view());
    return {y};
  }

  void add_gradient(NDArrays g, const Saved& saved, GradientSums& into) override {
    const NDArray& y = saved.output_array(0);
    const NDArray dx = NDArray::empty(y.shape(), y.dtype(), y.device());
    y.device()->softmax_gradient(form, y.view(), g[0].compact().view(), dx.view());
    into.add(0, dx);
  }
};

Tensor along_axis(SoftmaxForm form, const Tensor& x, int axis) {
  if (x.rank() == 0) return reshape(along_axis(form, reshape(x, {1}), axis), {});
  axis = normalized_axis("softmax", axis, x.rank());
  if (axis == x.rank() - 1) return apply_op<SoftmaxOp>({x}, form);
  return transpose(apply_op<SoftmaxOp>({transpose(x, axis, -1)}, form), axis, -1);
}

}  // namespace

Tensor softmax(const Tensor& x, int axis) { return along_axis(SoftmaxForm::probabilities, x, axis); }
Tensor log_softmax(const Tensor& x, int axis) { return along_axis(SoftmaxForm::logarithms, x, axis); }

}  // namespace needle
