#include "needle/ops/checkpoint.h"

namespace needle {

namespace {

/// Inputs: those of the function, then the leaves that it captured.
struct CheckpointOp final : FusedOp {
  std::function<Tensors(const Tensors&)> function;
  std::size_t function_inputs = 0;
  Generator* random = nullptr;
  Generator start{0};
  NDArrays computed;  // by the run that found the captured leaves

  const char* name() const override { return "checkpoint"; }

  NDArrays compute(const NDArrays&) override { return std::move(computed); }

  Tensors definition(const Tensors& inputs) const override {
    const Tensors own(inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(function_inputs));
    if (!random) return function(own);
    const Generator now = std::exchange(*random, start);
    Tensors result = function(own);
    *random = now;
    return result;
  }

  int passed_inputs(int) const override { return static_cast<int>(function_inputs); }
};

}  // namespace

Tensors checkpoint(const std::function<Tensors(const Tensors&)>& function, const Tensors& inputs,
                   Generator* random) {
  auto op = std::make_unique<CheckpointOp>();
  op->function = function;
  op->function_inputs = inputs.size();
  op->random = random;
  if (random) op->start = *random;
  if (!grad_enabled()) return function(inputs);
  Tensors all = inputs;
  {
    // Run on detached inputs that require a gradient, so that the leaves which remain are the captured ones.
    Tensors own;
    for (const Tensor& input : inputs)
      own.push_back(input.requires_grad() ? Tensor(input.array(), true) : input.detach());
    const Tensors results = function(own);
    for (const Tensor& result : results) op->computed.push_back(result.array());
    for (const Tensor& leaf : leaves_of(results)) {
      bool is_own = false;
      for (const Tensor& input : own) is_own |= input.body() == leaf.body();
      if (!is_own) all.push_back(leaf);
    }
  }
  return apply_op(std::move(op), all);
}

}  // namespace needle
