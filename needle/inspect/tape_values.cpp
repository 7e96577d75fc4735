#include "needle/inspect/tape_values.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "backends/clock.h"
#include "needle/counters.h"
#include "needle/inspect/gradient_check.h"
#include "needle/node.h"

namespace needle {

namespace {

std::size_t at(int number) { return static_cast<std::size_t>(number); }

/// 1 at the entry, 0 elsewhere.
NDArray one_at(std::int64_t entry, const Shape& shape, DType dtype, Device device) {
  std::vector<double> values(static_cast<std::size_t>(shape.count()));
  values[static_cast<std::size_t>(entry)] = 1;
  return NDArray::from(values, shape, device).cast(dtype);
}

/// For ordering: what is no number counts as the largest.
double size_of_number(double x) { return std::isnan(x) ? INFINITY : std::abs(x); }

double entry_of(const NDArray& x, std::int64_t entry) { return x.reshape({-1})[entry].item(); }

Tensor tensor_at(const std::shared_ptr<Node>& node, int output, const NDArray& array) {
  Tensor tensor(array);
  tensor.body()->requires_grad = true;
  tensor.body()->node = node;
  tensor.body()->output = output;
  return tensor;
}

bool all_defined(const NDArrays& arrays) {
  return std::ranges::all_of(arrays, [](const NDArray& array) { return array.defined(); });
}

}  // namespace

void ArrayKeeper::after(const OpEvent& event) {
  if (event.phase != Phase::forward) return;
  calls_.push_back({event.op, event.node ? event.node->number : -1,
                    NDArrays(event.inputs.begin(), event.inputs.end()),
                    NDArrays(event.outputs.begin(), event.outputs.end())});
}

TapeValues::TapeValues(const Tape& tape, const Tensor& loss, const ArrayKeeper* keeper)
    : tape_(tape),
      values_(tape.tensors.size()),
      gradients_(tape.tensors.size()),
      inputs_(tape.ops.size()),
      nodes_(tape.ops.size()) {
  const std::vector<std::shared_ptr<Node>> nodes = nodes_of(loss);
  std::map<std::int64_t, std::shared_ptr<Node>> reached;
  for (const std::shared_ptr<Node>& node : nodes) reached[node->number] = node;
  const std::size_t count = keeper ? keeper->calls().size() : nodes.size();
  require(count == tape.ops.size(), "inside: the step took ", tape.ops.size(), " ops, and repeated ", count);
  for (std::size_t i = 0; i < count; ++i) {
    const TapeOp& op = tape.ops[i];
    const std::int64_t node = keeper ? keeper->calls()[i].node : nodes[i]->number;
    const char* const name = keeper ? keeper->calls()[i].op : nodes[i]->op->name();
    require(op.op == name, "inside: op ", i, " of the step is ", op.op, ", and repeated ", name);
    if (const auto found = reached.find(node); found != reached.end()) nodes_[i] = found->second;
    if (keeper) {
      const ArrayKeeper::Call& call = keeper->calls()[i];
      inputs_[i] = call.inputs;
      for (std::size_t k = 0; k < op.inputs.size(); ++k) {
        NDArray& value = values_[at(op.inputs[k])];
        if (!value.defined()) value = call.inputs[k];
      }
      for (std::size_t k = 0; k < op.outputs.size(); ++k) values_[at(op.outputs[k])] = call.outputs[k];
    }
  }
  if (!keeper) recompute();

  // Gradients of everything that the loss depends on.
  std::vector<Tensor> tensors;
  std::vector<int> numbers;
  std::vector<char> seen(tape.tensors.size());
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i]) continue;
    for (std::size_t k = 0; k < tape.ops[i].inputs.size(); ++k) {
      const int number = tape.ops[i].inputs[k];
      const std::shared_ptr<TensorBody>& leaf = nodes_[i]->inputs[k].leaf;
      if (!leaf || std::exchange(seen[at(number)], 1)) continue;
      tensors.emplace_back(leaf);
      numbers.push_back(number);
    }
    for (std::size_t k = 0; k < tape.ops[i].outputs.size(); ++k) {
      const int number = tape.ops[i].outputs[k];
      if (nodes_[i] == loss.body()->node && static_cast<int>(k) == loss.body()->output) loss_ = number;
      const Node::Slot& slot = nodes_[i]->outputs[k];
      if (!is_floating(slot.dtype)) continue;
      const NDArray& value = values_[at(number)];
      tensors.push_back(
          tensor_at(nodes_[i], static_cast<int>(k),
                    value.defined() ? value : NDArray::zeros(slot.shape, slot.dtype, slot.device)));
      numbers.push_back(number);
    }
  }
  const std::vector<Tensor> found = gradients(loss, tensors);
  for (std::size_t i = 0; i < found.size(); ++i) gradients_[at(numbers[i])] = found[i].array();
}

void TapeValues::recompute() {
  const NoGrad off;
  const ObserverScope unseen(nullptr);
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const TapeOp& op = tape_.ops[i];
    NDArrays inputs;
    for (std::size_t k = 0; k < op.inputs.size(); ++k) {
      const Node::Slot& slot = nodes_[i]->inputs[k];
      NDArray& value = values_[at(op.inputs[k])];
      if (!value.defined()) value = slot.leaf ? slot.leaf->array : slot.array;
      inputs.push_back(slot.array.defined() ? slot.array : value);
    }
    inputs_[i] = inputs;
    NDArrays outputs;
    for (const Node::Slot& slot : nodes_[i]->outputs) outputs.push_back(slot.array);
    if (!all_defined(outputs) && all_defined(inputs)) outputs = nodes_[i]->op->compute(inputs);
    for (std::size_t k = 0; k < op.outputs.size(); ++k) values_[at(op.outputs[k])] = outputs[k];
  }
}

double TapeValues::operations(int op) const {
  NDArrays outputs;
  for (const int output : tape_.ops[at(op)].outputs) outputs.push_back(value(output));
  if (!nodes_[at(op)] || !all_defined(inputs_[at(op)]) || !all_defined(outputs)) return 0;
  return nodes_[at(op)]->op->operations(inputs_[at(op)], outputs);
}

void TapeValues::compute_again(int number, TapeOp& op) const {
  const std::shared_ptr<Node>& node = nodes_[at(number)];
  const NDArrays& inputs = inputs_[at(number)];
  if (!node || !all_defined(inputs)) return;
  const NoGrad off;
  const ObserverScope unseen(nullptr);
  const Device device = node->outputs[0].device;
  device->synchronize();
  const double start = now();
  const NDArrays outputs = node->op->compute(inputs);
  device->synchronize();
  op.forward_seconds = now() - start;
  const OpTally tally =
      tally_of({node->op->name(), Phase::forward, node->path, inputs, outputs, op.operations});
  op.bytes_read = tally.bytes_read;
  op.bytes_written = tally.bytes_written;
}

NDArrays TapeValues::column(int number, int tensor, std::int64_t entry) const {
  const std::shared_ptr<Node>& node = nodes_[at(number)];
  const TapeOp& op = tape_.ops[at(number)];
  const GradMode on(true);
  const ObserverScope unseen(nullptr);
  Tensors incoming;
  for (const Node::Slot& slot : node->outputs)
    incoming.emplace_back(NDArray::zeros(slot.shape, slot.dtype, slot.device), is_floating(slot.dtype));
  Needs needs;
  Borders borders{node.get()};
  for (std::size_t k = 0; k < op.inputs.size(); ++k) {
    needs.push_back(op.inputs[k] == tensor);
    if (node->inputs[k].node) borders.insert(node->inputs[k].node.get());
  }
  const Tensors outgoing = node->op->gradient(incoming, Saved(node, false), needs);
  NDArrays result(op.outputs.size());
  std::vector<Tensor> ys, xs, seeds;
  for (std::size_t k = 0; k < op.inputs.size(); ++k) {  // a tensor may enter twice
    if (!needs[k] || !outgoing[k].requires_grad()) continue;
    ys.push_back(outgoing[k]);
    seeds.emplace_back(one_at(entry, outgoing[k].shape(), outgoing[k].dtype(), outgoing[k].device()));
  }
  std::vector<std::size_t> places;
  for (std::size_t k = 0; k < incoming.size(); ++k) {
    if (!incoming[k].requires_grad()) continue;
    xs.push_back(incoming[k]);
    places.push_back(k);
  }
  if (ys.empty()) return result;
  const std::vector<Tensor> found = gradients_within(borders, ys, xs, seeds, false);
  for (std::size_t k = 0; k < found.size(); ++k) result[places[k]] = found[k].array();
  return result;
}

NDArray TapeValues::loss_with(int tensor, const NDArray& changed) const {
  const NoGrad off;
  const ObserverScope unseen(nullptr);
  std::map<int, NDArray> moved{{tensor, changed}};
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const TapeOp& op = tape_.ops[i];
    if (!std::ranges::any_of(op.inputs, [&](int input) { return moved.contains(input); })) continue;
    if (!nodes_[i]) continue;  // nothing that the loss depends on
    NDArrays inputs;
    for (std::size_t k = 0; k < op.inputs.size(); ++k) {
      const auto found = moved.find(op.inputs[k]);
      inputs.push_back(found == moved.end() ? inputs_[i][k] : found->second);
    }
    if (!all_defined(inputs)) return {};
    const NDArrays outputs = nodes_[i]->op->compute(inputs);
    for (std::size_t k = 0; k < op.outputs.size(); ++k) {
      if (op.outputs[k] != tensor) moved[op.outputs[k]] = outputs[k];
    }
  }
  return moved.contains(loss_) ? moved[loss_] : NDArray();
}

std::optional<double> TapeValues::finite_difference(int tensor, std::int64_t entry) const {
  const NDArray& x = value(tensor);
  if (!x.defined()) return {};
  std::vector<double> numbers = x.to_vector<double>();
  bool known = true;
  const auto loss_at = [&](double moved) {
    std::vector<double> changed = numbers;
    changed[static_cast<std::size_t>(entry)] = moved;
    const NDArray loss = loss_with(tensor, NDArray::from(changed, x.shape(), x.device()).cast(x.dtype()));
    known = known && loss.defined();
    return known ? loss.item() : 0;
  };
  const double at_entry = numbers[static_cast<std::size_t>(entry)];
  double slope = slope_of(loss_at, at_entry);
  if (known && x.dtype() == DType::f64) {  // a kink, as relu's, may lie within the step
    constexpr double kSmallStep = 1e-5, kSame = 1e-6;
    const double close = slope_of(loss_at, at_entry, kSmallStep);
    if (std::abs(close - slope) > kSame * std::abs(close)) slope = close;
  }
  loss_with(tensor, x);  // what ops keep in themselves is of the step again
  return known ? std::optional(slope) : std::nullopt;
}

namespace {

/// Which ops read a tensor.
std::vector<std::vector<int>> readers_of(const Tape& tape, const TapeValues& values) {
  std::vector<std::vector<int>> readers(tape.tensors.size());
  for (int i = 0; i < static_cast<int>(tape.ops.size()); ++i) {
    if (!values.node(i)) continue;
    for (const int input : tape.ops[at(i)].inputs) {
      std::vector<int>& ops = readers[at(input)];
      if (ops.empty() || ops.back() != i) ops.push_back(i);
    }
  }
  return readers;
}

ChainStep step_from(const Tape& tape, const TapeValues& values, const std::vector<int>& readers, int tensor,
                    std::int64_t entry) {
  constexpr std::size_t kListed = 6;
  ChainStep step{tensor, entry, 0, entry_of(values.gradient(tensor), entry), {}};
  step.value = values.value(tensor).defined() ? entry_of(values.value(tensor), entry) : std::nan("");
  for (const int reader : readers) {
    const NDArrays column = values.column(reader, tensor, entry);
    for (std::size_t k = 0; k < column.size(); ++k) {
      const int output = tape.ops[at(reader)].outputs[k];
      if (!column[k].defined() || !values.gradient(output).defined()) continue;
      const std::vector<double> factors = column[k].to_vector<double>(),
                                incoming = values.gradient(output).to_vector<double>();
      for (std::size_t o = 0; o < factors.size(); ++o) {
        if (factors[o] != 0)
          step.parts.push_back({reader, output, static_cast<std::int64_t>(o), factors[o], incoming[o]});
      }
    }
  }
  std::ranges::stable_sort(step.parts, std::greater(),
                           [](const ChainStep::Part& part) { return size_of_number(part.product()); });
  while (step.parts.size() > kListed) {
    ++step.rest_count;
    step.rest_sum += step.parts.back().product();
    step.parts.pop_back();
  }
  return step;
}

}  // namespace

FollowedNumbers follow(const Tape& tape, const TapeValues& values,
                       const std::vector<std::pair<int, std::int64_t>>& entries) {
  const std::vector<std::vector<int>> readers = readers_of(tape, values);
  FollowedNumbers result;
  std::map<std::pair<int, std::int64_t>, int> steps;
  for (const auto& [tensor, entry] : entries) {
    std::pair<int, std::int64_t> place{tensor, entry};
    std::optional<std::size_t> from;
    int first = -1;
    while (true) {
      const auto [known, is_new] = steps.try_emplace(place, static_cast<int>(result.chain.size()));
      if (from) result.chain[*from].parts.front().next = known->second;
      if (first < 0) first = known->second;
      if (!is_new) break;
      result.chain.push_back(step_from(tape, values, readers[at(place.first)], place.first, place.second));
      const ChainStep& step = result.chain.back();
      if (step.parts.empty()) break;
      from = result.chain.size() - 1;
      place = {step.parts.front().output, step.parts.front().entry};
    }
    const ChainStep& step = result.chain[at(first)];
    result.numbers.push_back({tensor, entry, step.value, step.gradient, {}, first});
  }
  for (FollowedNumber& number : result.numbers)
    number.finite_difference = values.finite_difference(number.tensor, number.entry);
  return result;
}

std::vector<std::pair<int, std::int64_t>> entries_worth_following(const Tape& tape, const TapeValues& values,
                                                                  int parameters) {
  const auto steepest = [&](int tensor) {
    const std::vector<double> gradient = values.gradient(tensor).to_vector<double>();
    return std::ranges::max_element(gradient, {}, size_of_number) - gradient.begin();
  };
  std::vector<std::pair<int, std::int64_t>> entries;
  if (values.loss() < 0) return entries;
  entries.emplace_back(values.loss(), 0);
  // The logits, where the loss is made of such.
  const auto losing = std::find_if(tape.ops.rbegin(), tape.ops.rend(),
                                   [](const TapeOp& op) { return op.op.ends_with("cross_entropy"); });
  const TapeOp& last =
      losing != tape.ops.rend() ? *losing : tape.ops[at(tape.tensors[at(values.loss())].producer)];
  for (const int input : last.inputs) {
    if (tape.tensors[at(input)].kind == TapeTensor::Kind::value && values.gradient(input).defined() &&
        values.gradient(input).count() > 0)
      entries.emplace_back(input, steepest(input));
  }
  std::vector<int> trained;
  for (int i = 0; i < static_cast<int>(tape.tensors.size()); ++i) {
    if (tape.tensors[at(i)].kind == TapeTensor::Kind::parameter && values.gradient(i).defined() &&
        values.gradient(i).count() > 0)
      trained.push_back(i);
  }
  // Spread over all of them where they are many.
  const int count = std::min(parameters, static_cast<int>(trained.size()));
  for (int i = 0; i < count; ++i) {
    const int tensor = trained[static_cast<std::size_t>(i) * trained.size() / at(count)];
    entries.emplace_back(tensor, steepest(tensor));
  }
  return entries;
}

std::optional<DefinitionOfOp> definition_of(const Tape& tape, const TapeValues& values, int number) {
  const std::shared_ptr<Node>& node = values.node(number);
  const FusedOp* const fused = node ? dynamic_cast<const FusedOp*>(node->op.get()) : nullptr;
  if (!fused) return {};
  const TapeOp& op = tape.ops[at(number)];
  Tensors inputs;
  std::vector<Parameter> names;
  const auto passed = at(fused->passed_inputs(static_cast<int>(op.inputs.size())));
  for (std::size_t k = 0; k < passed; ++k) {
    const NDArray& value = values.value(op.inputs[k]);
    if (!value.defined()) return {};
    inputs.emplace_back(value, is_floating(value.dtype()));
    names.push_back({"input " + std::to_string(k), inputs.back(), false, {}});
  }
  DefinitionOfOp result;
  const GradMode on(true);
  TapeWatch watch(node->outputs[0].device, names);
  Tensors outputs;
  {
    const ObserverScope scope(&watch);
    outputs = fused->definition(inputs);
  }
  result.tape = watch.finish();
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    const NDArray& value = values.value(op.outputs[k]);
    if (!value.defined() || value.count() == 0) return {};
    const std::vector<double> fast = value.to_vector<double>(),
                              simple = outputs[k].array().to_vector<double>();
    double largest = 0, difference = 0;
    for (std::size_t i = 0; i < fast.size(); ++i) {
      const bool same = fast[i] == simple[i] || (std::isnan(fast[i]) && std::isnan(simple[i]));
      difference = std::max(difference, same ? 0 : size_of_number(fast[i] - simple[i]));
      if (std::isfinite(simple[i])) largest = std::max(largest, std::abs(simple[i]));
    }
    result.difference = std::max(result.difference, difference);
    if (largest > 0) result.relative = std::max(result.relative, difference / largest);
  }
  return result;
}

}  // namespace needle
