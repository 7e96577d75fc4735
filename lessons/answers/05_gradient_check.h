// Below 1 the slope is -2 (1 - x), above it 0: -2 max(1 - x, 0). Written with tensors, it has a slope itself.
#pragma once

#include "needle/ops/ops.h"

namespace needle::answers {

struct Hinge final : Op {
  const char* name() const override { return "hinge"; }
  NDArrays compute(const NDArrays& inputs) override {
    const NDArray one = NDArray::scalar(1, inputs[0].dtype(), inputs[0].device());
    const NDArray missing = unary(Relu{}, binary(Subtract{}, one, inputs[0]));
    return {binary(Multiply{}, missing, missing)};
  }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    return {g[0] * relu(1.0 - saved.input(0)) * -2.0};
  }
  Reads reads() const override { return {0b1, 0b0}; }
};

/// max(1 - x, 0)^2.
inline Tensor hinge(const Tensor& x) { return apply_op<Hinge>({x}); }

}  // namespace needle::answers
