#include "needle/inspect/tape.h"

#include <algorithm>

#include "backends/clock.h"
#include "needle/counters.h"
#include "needle/node.h"

namespace needle {

namespace {

std::size_t bytes_of(const Shape& shape, DType dtype) {
  return static_cast<std::size_t>(shape.count()) * size_of(dtype);
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
  return "in the op";
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
    std::size_t& bytes = standing_.emplace_back(what, 0).second;
    for (const NDArray& array : arrays) {
      if (stood_.insert(array.storage()).second) bytes += array.storage().lock()->bytes();
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
    NDArrays inputs, outputs;
    for (const Node::Slot& slot : node->inputs) inputs.push_back(slot.array);
    for (const Node::Slot& slot : node->outputs) outputs.push_back(slot.array);
    const int number = add_op(node.get(), node->op->name(), node->path, {}, outputs);
    tape_.ops[static_cast<std::size_t>(number)].operations = node->operations;
    keep(number, kept_by(*node), {node->op->name(), Phase::forward, node->path, inputs, outputs, 0});
  }
}

void TapeWatch::before(const OpEvent& event) {
  note_freed();
  if (event.phase == Phase::backward) {
    if (tape_.live_after_forward == 0)  // but for the seed of the walk
      tape_.live_after_forward = device_->memory_stats().live - event.inputs.front().bytes();
    bytes_in_ = 0;
    for (const NDArray& input : event.inputs) bytes_in_ += static_cast<double>(input.bytes());
    first_in_ = event.inputs.empty() ? Memory() : event.inputs.front().storage();
  }
  device_->synchronize();
  started_ = now();
}

void TapeWatch::computed(std::span<const NDArray>) {
  device_->synchronize();
  ended_ = now();
  live_ = device_->memory_stats().live;
}

void TapeWatch::after(const OpEvent& event) {
  tape_.events.push_back({event.phase, -1, event.op, started_ - origin_, ended_ - started_, live_, {}});
  if (event.phase == Phase::forward) after_forward(event);
  if (event.phase == Phase::backward) after_backward(event);
  if (tape_.peak_event < 0 || live_ > tape_.peak_bytes())
    tape_.peak_event = static_cast<int>(tape_.events.size()) - 1;
}

void TapeWatch::keep(int op, std::span<const NDArray> arrays, const OpEvent& event) {
  TapeOp& keeper = tape_.ops[static_cast<std::size_t>(op)];
  for (const NDArray& array : arrays) {
    if (stood_.contains(array.storage())) continue;
    keeper.kept.push_back({role_of(array, event), array.bytes()});
    const auto [stay, is_new] = stay_of_.try_emplace(array.storage(), stays_.size());
    stays_of_op_[op].push_back(stay->second);
    if (!is_new) continue;
    const std::size_t bytes = array.storage().lock()->bytes();
    stays_.push_back({array.storage(), bytes, op, static_cast<int>(tape_.events.size()) - 1});
    keeper.kept_bytes += static_cast<double>(bytes);
  }
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
  keep(number, event.kept, event);
}

void TapeWatch::after_backward(const OpEvent& event) {
  const int now_at = static_cast<int>(tape_.events.size()) - 1;
  for (const NDArray& gradient : event.kept) {
    if (stay_of_.try_emplace(gradient.storage(), stays_.size()).second)
      stays_.push_back({gradient.storage(), gradient.storage().lock()->bytes(), -1, now_at});
  }
  const auto found = ops_.find(event.node);
  if (found == ops_.end()) return;
  tape_.events.back().op = found->second;
  TapeOp& op = tape_.ops[static_cast<std::size_t>(found->second)];
  op.backward_operations += event.operations;
  op.backward_seconds += tape_.events.back().seconds;
  if (op.kept_bytes == 0) op.kept_until = now_at;
  // Gradients that were passed on as they came were neither read nor written.
  const auto passed_on = [&](const NDArray& output) {
    const Memory memory = output.storage();
    return !output.defined() || (!memory.owner_before(first_in_) && !first_in_.owner_before(memory));
  };
  if (std::ranges::all_of(event.outputs, passed_on)) return;
  op.backward_bytes += bytes_in_;
  for (const NDArray& output : event.outputs) {
    if (output.defined()) op.backward_bytes += static_cast<double>(output.bytes());
  }
}

void TapeWatch::note_freed() {
  if (tape_.events.empty() || tape_.events.back().op < 0) return;
  const int now_at = static_cast<int>(tape_.events.size()) - 1, op = tape_.events.back().op;
  // A walk lets go of what the visited op held, unless it passes it on as a gradient. Forward, a graph that
  // nobody wants is gone soon.
  constexpr std::size_t kRecent = 64;
  const auto held = stays_of_op_.find(op);
  if (held != stays_of_op_.end()) expected_.insert(expected_.end(), held->second.begin(), held->second.end());
  std::erase_if(expected_, [&](std::size_t number) {
    Stay& stay = stays_[number];
    if (stay.op < 0 || stay.until >= 0) return true;
    if (!stay.memory.expired()) return false;
    stay.until = now_at;
    tape_.ops[static_cast<std::size_t>(stay.op)].kept_until = now_at;
    std::vector<int>& freed = tape_.events.back().freed;
    if (std::ranges::find(freed, stay.op) == freed.end()) freed.push_back(stay.op);
    return true;
  });
  if (tape_.events.back().phase == Phase::forward && expected_.size() > kRecent)
    expected_.erase(expected_.begin(), expected_.end() - static_cast<std::ptrdiff_t>(kRecent));
}

std::vector<MemoryShare> TapeWatch::composition_of(int event) const {
  std::map<std::string, std::size_t> shares(standing_.begin(), standing_.end());
  std::size_t named = 0;
  for (const auto& [what, bytes] : standing_) named += bytes;
  for (const Stay& stay : stays_) {
    if (stay.since > event || (stay.until >= 0 && stay.until < event)) continue;
    std::string what = "gradients";
    if (stay.op >= 0) {
      const TapeOp& op = tape_.ops[static_cast<std::size_t>(stay.op)];
      what = "kept by " + op.op + (op.path.empty() ? "" : " in " + without_numbers(op.path));
    }
    shares[what] += stay.bytes;
    named += stay.bytes;
  }
  const std::size_t live = tape_.events[static_cast<std::size_t>(event)].live;
  if (live > named) shares["values in use"] = live - named;
  std::vector<MemoryShare> result;
  for (const auto& [what, bytes] : shares) {
    if (bytes > 0) result.push_back({what, bytes});
  }
  std::ranges::stable_sort(result, std::greater(), &MemoryShare::bytes);
  return result;
}

Tape TapeWatch::finish() {
  note_freed();
  for (Stay& stay : stays_) {  // what went unseen went soon
    if (stay.op >= 0 && stay.until < 0 && stay.memory.expired()) stay.until = stay.since;
  }
  if (tape_.peak_event >= 0) tape_.peak = composition_of(tape_.peak_event);
  tape_.live_after = device_->memory_stats().live;
  return std::move(tape_);
}

}  // namespace needle
