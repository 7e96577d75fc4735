// Tensors, recording, and what a node keeps. The walk is in backward.cpp.
#include "needle/autograd.h"

#include <algorithm>
#include <unordered_set>

#include "needle/node.h"

namespace needle {

namespace {
thread_local bool recording = true;
thread_local std::int64_t nodes_recorded = 0;
}  // namespace

bool grad_enabled() { return recording; }
GradMode::GradMode(bool enabled) : previous_(recording) { recording = enabled; }
GradMode::~GradMode() { recording = previous_; }

Tensor::Tensor(NDArray array, bool requires_grad) : body_(std::make_shared<TensorBody>()) {
  body_->array = std::move(array);
  set_requires_grad(requires_grad);
}

void Tensor::set_requires_grad(bool wanted) {
  // An optimizer writes elements one after the other, each in a place of its own.
  if (wanted) body_->array = body_->array.compact();
  require(is_leaf(), "tensor: only a leaf can be told whether it requires a gradient");
  require(!wanted || is_floating(dtype()), "tensor: only floating types can require a gradient, got ",
          name_of(dtype()));
  body_->requires_grad = wanted;
}

void Tensor::set_array(NDArray array) {
  require(is_leaf(), "tensor: only a leaf's array can be replaced");
  require(array.shape() == shape(), "tensor: an array of shape ", shape(), " cannot be replaced by one of ",
          array.shape());
  if (requires_grad()) array = array.compact();
  body_->array = std::move(array);
}

// --- nodes ---------------------------------------------------------------------------------------------

Node::Slot::Slot(const NDArray& from, bool keep)
    : shape(from.shape()), dtype(from.dtype()), device(from.device()), writes(from.writes()) {
  if (keep) array = from;
}

void Node::release() {
  op.reset();
  // A chain of nodes that own one another would be destroyed recursively; this takes it apart in a loop.
  std::vector<std::shared_ptr<Node>> orphans;
  const auto take_inputs = [&orphans](Node& node) {
    for (Slot& slot : node.inputs) {
      if (slot.node) orphans.push_back(std::move(slot.node));
    }
    node.inputs.clear();
    node.outputs.clear();
  };
  take_inputs(*this);
  while (!orphans.empty()) {
    const std::shared_ptr<Node> node = std::move(orphans.back());
    orphans.pop_back();
    if (node.use_count() == 1) take_inputs(*node);
  }
  released = true;
}

NDArrays kept_by(const Node& node) {
  NDArrays kept = node.op->kept();
  for (const Node::Slot& slot : node.inputs) {
    if (!slot.leaf) kept.push_back(slot.array);
  }
  for (const Node::Slot& slot : node.outputs) kept.push_back(slot.array);
  std::erase_if(kept, [](const NDArray& array) { return !array.defined(); });
  return kept;
}

std::vector<Tensor> apply_op(std::unique_ptr<Op> op, const std::vector<Tensor>& inputs) {
  std::vector<NDArray> arrays;
  arrays.reserve(inputs.size());
  bool wanted = false;
  for (const Tensor& input : inputs) {
    require(input.defined(), op->name(), ": input ", arrays.size(), " is not defined");
    arrays.push_back(input.array());
    require(arrays.back().device() == arrays.front().device(), op->name(),
            ": inputs are on different devices: ", arrays.front().device().name(), " and ",
            arrays.back().device().name());
    wanted |= input.requires_grad();
  }
  std::vector<NDArray> results;
  double operations = 0;
  const auto compute = [&] {
    try {
      return op->compute(arrays);
    } catch (const DeviceError& error) {
      rethrow_with_place(error, op->name(), Phase::forward, current_path());
    }
  };
  Observer* const observer = current_observer();
  const char* const name = op->name();
  if (observer) {
    const ObserverScope inner(nullptr);
    observer->before({name, Phase::forward, current_path(), arrays, {}, 0});
    results = compute();
    observer->computed(results);
    operations = op->operations(arrays, results);
  } else {
    results = compute();
  }

  std::shared_ptr<Node> node;
  if (wanted && recording) {
    node = std::make_shared<Node>();
    node->path = current_path();
    node->number = nodes_recorded++;
    node->operations = operations;
    const Reads reads = op->reads();
    const auto reads_bit = [](std::uint64_t bits, std::size_t index) {
      return ((bits >> (index & 63)) & 1) != 0;
    };
    node->inputs.reserve(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      Node::Slot& slot = node->inputs.emplace_back(arrays[i], reads_bit(reads.inputs, i));
      if (!inputs[i].requires_grad()) continue;
      if (inputs[i].is_leaf()) {
        slot.leaf = inputs[i].body();
      } else {
        slot.node = inputs[i].body()->node;
        slot.output = inputs[i].body()->output;
        node->depth = std::max(node->depth, slot.node->depth + 1);
      }
    }
    for (std::size_t i = 0; i < results.size(); ++i)
      node->outputs.emplace_back(results[i], reads_bit(reads.outputs, i));
    node->op = std::move(op);
  }
  if (observer) {
    const ObserverScope inner(nullptr);
    const NDArrays kept = node ? kept_by(*node) : NDArrays();
    observer->after({name, Phase::forward, current_path(), arrays, results, operations, kept, node.get()});
  }
  std::vector<Tensor> outputs;
  outputs.reserve(results.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    Tensor& output = outputs.emplace_back(std::move(results[i]));
    if (!node || !is_floating(output.dtype())) continue;
    output.body()->requires_grad = true;
    output.body()->node = node;
    output.body()->output = static_cast<int>(i);
  }
  return outputs;
}

// --- what a node kept ----------------------------------------------------------------------------------

namespace {

const NDArray& kept_array(const Node& node, const Node::Slot& slot, const char* role, int index) {
  require(slot.array.defined(), "backward of ", node.op->name(), ": ", role, ' ', index,
          " was not kept; the op's reads() must name it");
  require(slot.array.writes() == slot.writes, "backward of ", node.op->name(), ": ", role, ' ', index, ' ',
          slot.shape, " was overwritten after it was recorded, so the gradient would be wrong");
  return slot.array;
}

}  // namespace

const NDArray& Saved::input_array(int index) const {
  return kept_array(*node_, node_->inputs[static_cast<std::size_t>(index)], "input", index);
}
const NDArray& Saved::output_array(int index) const {
  return kept_array(*node_, node_->outputs[static_cast<std::size_t>(index)], "output", index);
}

Tensor Saved::input(int index) const {
  const NDArray& array = input_array(index);
  const Node::Slot& slot = node_->inputs[static_cast<std::size_t>(index)];
  if (slot.leaf) {
    require(slot.leaf->array.is_same(array), "backward of ", node_->op->name(), ": input ", index, ' ',
            slot.shape, " was replaced after it was recorded, so the gradient would be wrong");
    return Tensor(slot.leaf);
  }
  Tensor result(array);
  if (slot.node) {
    result.body()->requires_grad = true;
    result.body()->node = slot.node;
    result.body()->output = slot.output;
  }
  return result;
}

Tensor Saved::output(int index) const {
  Tensor result(output_array(index));
  result.body()->requires_grad = true;
  result.body()->node = node_;
  result.body()->output = index;
  return result;
}

const Shape& Saved::input_shape(int index) const {
  return node_->inputs[static_cast<std::size_t>(index)].shape;
}
const Shape& Saved::output_shape(int index) const {
  return node_->outputs[static_cast<std::size_t>(index)].shape;
}
DType Saved::input_dtype(int index) const { return node_->inputs[static_cast<std::size_t>(index)].dtype; }
int Saved::input_count() const { return static_cast<int>(node_->inputs.size()); }

bool Saved::may_overwrite_input(int index) const {
  return exclusive_ && node_->inputs[static_cast<std::size_t>(index)].array.is_exclusive();
}

// --- default gradients ---------------------------------------------------------------------------------

void Op::add_gradient(std::vector<NDArray> out_grads, const Saved& saved, GradientSums& into) {
  const NoGrad off;
  std::vector<Tensor> incoming;
  for (NDArray& gradient : out_grads) incoming.emplace_back(std::move(gradient));
  Needs needs;
  for (int i = 0; i < saved.input_count(); ++i) needs.push_back(into.needs(i));
  const std::vector<Tensor> result = gradient(incoming, saved, needs);
  for (int i = 0; i < saved.input_count(); ++i) {
    if (!into.needs(i)) continue;
    const std::size_t index = static_cast<std::size_t>(i);
    require(index < result.size() && result[index].defined(), "backward of ", name(),
            ": the gradient of input ", i, " is missing");
    into.add(i, result[index].array());
  }
}

double Op::operations(std::span<const NDArray>, std::span<const NDArray> outputs) const {
  double total = 0;
  for (const NDArray& output : outputs) total += static_cast<double>(output.count());
  return total;
}

double Op::gradient_operations(double forward, const Needs& needs) const {
  return forward * static_cast<double>(std::count(needs.begin(), needs.end(), true));
}

namespace {

/// Passes a value on: the fresh place in the graph at which the walk through a definition stops.
struct IdentityOp final : Op {
  const char* name() const override { return "identity"; }
  std::vector<NDArray> compute(const std::vector<NDArray>& inputs) override { return inputs; }
  std::vector<Tensor> gradient(const std::vector<Tensor>& out_grads, const Saved&, const Needs&) override {
    return out_grads;
  }
};

}  // namespace

std::vector<Tensor> FusedOp::gradient(const std::vector<Tensor>& out_grads, const Saved& saved,
                                      const Needs& needs) {
  const bool differentiable = grad_enabled();
  const GradMode on(true);
  // One fresh node an input slot, so that a tensor in two slots is counted once a slot; the walk stops there.
  std::vector<Tensor> inputs, wanted;
  Borders borders;
  for (int i = 0; i < saved.input_count(); ++i) {
    Tensor input = saved.input(i);
    if (input.requires_grad() && i < passed_inputs(saved.input_count())) {
      input = apply_op<IdentityOp>({input});
      borders.insert(input.body()->node.get());
    }
    if (needs[static_cast<std::size_t>(i)]) wanted.push_back(input);
    inputs.push_back(std::move(input));
  }
  const std::vector<Tensor> found =
      gradients_within(borders, definition(inputs), wanted, out_grads, differentiable);
  std::vector<Tensor> result(inputs.size());
  for (std::size_t i = 0, next = 0; i < inputs.size(); ++i) {
    if (needs[i]) result[i] = found[next++];
  }
  return result;
}

std::vector<std::shared_ptr<Node>> nodes_of(const Tensor& y) {
  std::vector<std::shared_ptr<Node>> nodes;
  std::unordered_set<const Node*> seen;
  const auto visit = [&](const std::shared_ptr<Node>& node) {
    if (!node || !seen.insert(node.get()).second) return;
    require(!node->released,
            "the graph of this value was walked before and is freed; pass retain_graph to keep it");
    nodes.push_back(node);
  };
  visit(y.body()->node);
  for (std::size_t next = 0; next < nodes.size(); ++next) {
    const std::shared_ptr<Node> node = nodes[next];
    for (const Node::Slot& slot : node->inputs) visit(slot.node);
  }
  std::ranges::sort(nodes, {}, [](const std::shared_ptr<Node>& node) { return node->number; });
  return nodes;
}

std::vector<Tensor> leaves_of(const std::vector<Tensor>& ys) {
  std::unordered_set<const void*> seen;
  std::vector<Node*> stack;
  std::vector<Tensor> leaves;
  const auto visit = [&](Node* node) {
    if (node && seen.insert(node).second) stack.push_back(node);
  };
  for (const Tensor& y : ys) visit(y.body()->node.get());
  while (!stack.empty()) {
    Node* const node = stack.back();
    stack.pop_back();
    for (const Node::Slot& slot : node->inputs) {
      visit(slot.node.get());
      if (slot.leaf && seen.insert(slot.leaf.get()).second) leaves.emplace_back(slot.leaf);
    }
  }
  return leaves;
}

}  // namespace needle
