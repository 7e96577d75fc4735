#include "needle/inspect/tape.h"

#include <algorithm>
#include <unordered_set>

#include "backends/clock.h"
#include "needle/counters.h"
#include "needle/node.h"

namespace needle {

namespace {

void wait_for(std::span<const NDArray> arrays) {
  for (const NDArray& array : arrays) {
    if (array.defined()) return array.device()->synchronize();
  }
}

std::size_t bytes_of(const Shape& shape, DType dtype) {
  return static_cast<std::size_t>(shape.count()) * size_of(dtype);
}

std::size_t bytes_alive(const std::weak_ptr<const Storage>& memory) {
  const std::shared_ptr<const Storage> alive = memory.lock();
  return alive ? alive->bytes() : 0;
}

/// "blocks.3.ffn" as "blocks.*.ffn": layers that are alike.
std::string without_numbers(const std::string& path) {
  std::string result;
  for (std::size_t i = 0; i < path.size(); ++i) {
    const bool part_begins = i == 0 || path[i - 1] == '.';
    std::size_t end = i;
    while (part_begins && end < path.size() && path[end] >= '0' && path[end] <= '9') ++end;
    const bool number = end > i && (end == path.size() || path[end] == '.');
    result += number ? '*' : path[i];
    if (number) i = end - 1;
  }
  return result;
}

/// What `array` is to the op: an input, an output, or what it computed on the way.
std::string role_of(const NDArray& array, const OpEvent& event) {
  for (std::size_t i = 0; i < event.inputs.size(); ++i) {
    if (array.is_same(event.inputs[i])) return "input " + std::to_string(i);
  }
  for (std::size_t i = 0; i < event.outputs.size(); ++i) {
    if (array.is_same(event.outputs[i])) return "output " + std::to_string(i);
  }
  return "statistics";
}

}  // namespace

double Tape::seconds(Phase phase) const {
  double sum = 0;
  for (const TapeEvent& event : events) sum += event.phase == phase ? event.seconds : 0;
  return sum;
}

std::size_t Tape::peak_bytes() const {
  return peak_event < 0 ? live_before : events[static_cast<std::size_t>(peak_event)].live;
}

TapeWatch::TapeWatch(Device device, const std::vector<Parameter>& names, Standing standing)
    : device_(device), origin_(now()) {
  for (const Parameter& parameter : names) names_[parameter.tensor.body().get()] = parameter.name;
  for (const auto& [what, arrays] : standing) {
    std::vector<Memory>& memories = standing_.emplace_back(what, std::vector<Memory>()).second;
    for (const NDArray& array : arrays) {
      memories.push_back(array.storage());
      ever_kept_.insert(array.storage());
    }
  }
  tape_.live_before = device->memory_stats().live;
}

int TapeWatch::add_tensor(TapeTensor tensor) {
  tape_.tensors.push_back(std::move(tensor));
  return static_cast<int>(tape_.tensors.size()) - 1;
}

int TapeWatch::tensor_of(const NDArray& array) {
  const auto found = memories_.find(array.storage());
  // Another shape in the same memory is still what was put there.
  if (found != memories_.end()) return found->second;
  const int number =
      add_tensor({"constant " + std::to_string(tape_.tensors.size()), TapeTensor::Kind::constant,
                  array.shape(), array.dtype(), bytes_of(array.shape(), array.dtype())});
  memories_[array.storage()] = number;
  return number;
}

std::vector<int> TapeWatch::inputs_of(const Node& node, std::span<const NDArray> arrays) {
  std::vector<int> numbers;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    const Node::Slot& slot = node.inputs[i];
    if (slot.node) {
      const auto found = values_.find({slot.node.get(), slot.output});
      if (found != values_.end()) {
        numbers.push_back(found->second);
        ++tape_.ops[static_cast<std::size_t>(tape_.tensors[static_cast<std::size_t>(found->second)].producer)]
              .consumers;
        continue;
      }
    }
    if (slot.leaf) {
      const auto [place, is_new] = values_.try_emplace({slot.leaf.get(), -1});
      if (is_new) {
        const auto name = names_.find(slot.leaf.get());
        place->second = add_tensor(
            {name == names_.end() ? "leaf " + std::to_string(tape_.tensors.size()) : name->second,
             TapeTensor::Kind::parameter, slot.shape, slot.dtype, bytes_of(slot.shape, slot.dtype)});
      }
      numbers.push_back(place->second);
    } else if (i < arrays.size() || slot.array.defined()) {
      numbers.push_back(tensor_of(i < arrays.size() ? arrays[i] : slot.array));
    } else {
      numbers.push_back(
          add_tensor({"constant " + std::to_string(tape_.tensors.size()), TapeTensor::Kind::constant,
                      slot.shape, slot.dtype, bytes_of(slot.shape, slot.dtype)}));
    }
  }
  return numbers;
}

int TapeWatch::add_op(const Node* node, const char* name, const std::string& path,
                      std::span<const NDArray> inputs, std::span<const NDArray> outputs) {
  TapeOp op;
  op.op = name;
  op.path = part_.empty() || path.empty() ? part_ + path : part_ + '.' + path;
  op.recorded = node != nullptr;
  if (node) {
    op.inputs = inputs_of(*node, inputs);
  } else {
    for (const NDArray& input : inputs) op.inputs.push_back(tensor_of(input));
  }
  const int number = static_cast<int>(tape_.ops.size());
  const std::size_t count = node ? node->outputs.size() : outputs.size();
  for (std::size_t i = 0; i < count; ++i) {
    const Shape& shape = node ? node->outputs[i].shape : outputs[i].shape();
    const DType dtype = node ? node->outputs[i].dtype : outputs[i].dtype();
    const std::string which = count > 1 ? "." + std::to_string(i) : "";
    const int tensor = add_tensor({op.op + ' ' + std::to_string(number) + which, TapeTensor::Kind::value,
                                   shape, dtype, bytes_of(shape, dtype), number, static_cast<int>(i)});
    op.outputs.push_back(tensor);
    if (node) values_[{node, static_cast<int>(i)}] = tensor;
    if (i < outputs.size() && outputs[i].defined()) memories_[outputs[i].storage()] = tensor;
  }
  if (node) ops_[node] = number;
  tape_.ops.push_back(std::move(op));
  return number;
}

void TapeWatch::adopt(const std::vector<std::shared_ptr<Node>>& nodes) {
  for (const std::shared_ptr<Node>& node : nodes) {
    NDArrays outputs;
    for (const Node::Slot& slot : node->outputs) outputs.push_back(slot.array);
    const int number = add_op(node.get(), node->op->name(), node->path, {}, outputs);
    tape_.ops[static_cast<std::size_t>(number)].operations = node->operations;
  }
}

void TapeWatch::before(const OpEvent& event) {
  note_freed();
  wait_for(event.inputs);
  started_ = now();
}

void TapeWatch::computed(std::span<const NDArray> outputs) {
  wait_for(outputs);
  ended_ = now();
  live_ = device_->memory_stats().live;
}

void TapeWatch::after(const OpEvent& event) {
  tape_.events.push_back({event.phase, -1, event.op, started_ - origin_, ended_ - started_, live_, {}});
  if (event.phase == Phase::forward) after_forward(event);
  if (event.phase == Phase::backward) after_backward(event);
  look_at_memory(live_);
}

bool TapeWatch::is_standing(const NDArray& array) const {
  const Memory memory = array.storage();
  const auto same = [&](const Memory& other) {
    return !memory.owner_before(other) && !other.owner_before(memory);
  };
  return std::ranges::any_of(standing_,
                             [&](const auto& group) { return std::ranges::any_of(group.second, same); });
}

void TapeWatch::after_forward(const OpEvent& event) {
  const int number = add_op(event.node, event.op, event.path, event.inputs, event.outputs);
  tape_.events.back().op = number;
  TapeOp& op = tape_.ops[static_cast<std::size_t>(number)];
  const OpTally tally = tally_of(event);
  op.operations = tally.operations;
  op.bytes_read = tally.bytes_read;
  op.bytes_written = tally.bytes_written;
  op.forward_seconds = tape_.events.back().seconds;
  for (const NDArray& array : event.kept) {
    if (!is_standing(array)) op.kept.push_back({role_of(array, event), array.bytes()});
    if (!ever_kept_.insert(array.storage()).second) continue;
    const std::size_t bytes = array.storage().lock()->bytes();
    kept_.push_back({array.storage(), bytes, number});
    op.kept_bytes += static_cast<double>(bytes);
  }
}

void TapeWatch::after_backward(const OpEvent& event) {
  for (const NDArray& gradient : event.kept) gradients_.push_back(gradient.storage());
  const auto found = ops_.find(event.node);
  if (found == ops_.end()) return;
  tape_.events.back().op = found->second;
  TapeOp& op = tape_.ops[static_cast<std::size_t>(found->second)];
  const OpTally tally = tally_of(event);
  op.backward_operations += tally.operations;
  op.backward_bytes += tally.bytes_read + tally.bytes_written;
  op.backward_seconds += tape_.events.back().seconds;
  if (op.kept_bytes == 0) op.kept_until = static_cast<int>(tape_.events.size()) - 1;
}

void TapeWatch::note_freed() {
  if (tape_.events.empty()) return;
  std::erase_if(kept_, [&](const Kept& kept) {
    if (!kept.memory.expired()) return false;
    tape_.ops[static_cast<std::size_t>(kept.op)].kept_until = static_cast<int>(tape_.events.size()) - 1;
    std::vector<int>& freed = tape_.events.back().freed;
    if (std::ranges::find(freed, kept.op) == freed.end()) freed.push_back(kept.op);
    return true;
  });
}

void TapeWatch::look_at_memory(std::size_t live) {
  if (live <= most_live_) return;
  most_live_ = live;
  tape_.peak_event = static_cast<int>(tape_.events.size()) - 1;
  std::set<Memory, std::owner_less<>> counted;
  std::map<std::string, std::size_t> shares;
  std::size_t named = 0;
  const auto count = [&](const std::string& what, const Memory& memory) {
    const std::size_t bytes = bytes_alive(memory);
    if (bytes == 0 || !counted.insert(memory).second) return;
    shares[what] += bytes;
    named += bytes;
  };
  for (const auto& [what, memories] : standing_) {
    for (const Memory& memory : memories) count(what, memory);
  }
  for (const Memory& memory : gradients_) count("gradients", memory);
  for (const Kept& kept : kept_) {
    const TapeOp& op = tape_.ops[static_cast<std::size_t>(kept.op)];
    count("kept by " + op.op + (op.path.empty() ? "" : " in " + without_numbers(op.path)), kept.memory);
  }
  if (live > named) shares["values in use"] = live - named;
  tape_.peak.clear();
  for (const auto& [what, bytes] : shares) tape_.peak.push_back({what, bytes});
  std::ranges::stable_sort(tape_.peak, std::greater(), &MemoryShare::bytes);
}

Tape TapeWatch::finish() {
  note_freed();
  tape_.live_after = device_->memory_stats().live;
  return std::move(tape_);
}

std::vector<std::shared_ptr<Node>> nodes_of(const Tensor& loss) {
  std::vector<std::shared_ptr<Node>> nodes;
  std::unordered_set<const Node*> seen;
  const auto visit = [&](const std::shared_ptr<Node>& node) {
    if (node && seen.insert(node.get()).second) nodes.push_back(node);
  };
  visit(loss.body()->node);
  for (std::size_t next = 0; next < nodes.size(); ++next) {
    const std::shared_ptr<Node> node = nodes[next];
    for (const Node::Slot& slot : node->inputs) visit(slot.node);
  }
  std::ranges::sort(nodes, {}, [](const std::shared_ptr<Node>& node) { return node->number; });
  return nodes;
}

}  // namespace needle
