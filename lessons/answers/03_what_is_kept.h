// With y = 1 / x the slope is -1 / x^2 = -y^2: the result is enough. A logarithm that follows reads that
// result too, and what two gradients read is kept once.
#pragma once

#include "needle/ops/ops.h"

namespace needle::answers {

struct Reciprocal final : Op {
  const char* name() const override { return "reciprocal"; }
  NDArrays compute(const NDArrays& inputs) override {
    return {binary(Divide{}, NDArray::scalar(1, inputs[0].dtype(), inputs[0].device()), inputs[0])};
  }
  Tensors gradient(const Tensors& g, const Saved& saved, const Needs&) override {
    const Tensor y = saved.output(0);
    return {-g[0] * y * y};
  }
  Reads reads() const override { return {0b0, 0b1}; }
};

/// 1 / x.
inline Tensor reciprocal(const Tensor& x) { return apply_op<Reciprocal>({x}); }

}  // namespace needle::answers
