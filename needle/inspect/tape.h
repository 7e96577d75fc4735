// One training step as the engine ran it: its ops in order, what each read, made and kept, and until when.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "needle/nn/module.h"

namespace needle {

/// An array that ops read or made. Its place in Tape::tensors is its number.
struct TapeTensor {
  enum class Kind {
    parameter,  ///< a leaf that requires a gradient
    constant,   ///< what no recorded or watched op made: tokens, masks, numbers
    value       ///< an op's output
  };
  std::string name;  ///< a parameter's dotted name, or "layer_norm 12" after the op that made it
  Kind kind = Kind::constant;
  Shape shape;
  DType dtype = DType::f32;
  std::size_t bytes = 0;
  int producer = -1, output = 0;  ///< a value: which output of which op
};

/// What memory is in use for.
struct MemoryShare {
  std::string what;
  std::size_t bytes;
};

/// An application of an op, in the order of execution.
struct TapeOp {
  std::string op, path;              ///< dotted path of the module that applied it, "" outside of any
  std::vector<int> inputs, outputs;  ///< numbers of tensors
  double operations = 0, bytes_read = 0, bytes_written = 0;  ///< as counters.h counts them
  double backward_operations = 0, backward_bytes = 0;        ///< 0 where the walk did not come by
  double forward_seconds = 0, backward_seconds = 0;
  /// What stays for its gradient: "input 1", "output 0", "in the op"; parameters and the batch left out.
  std::vector<MemoryShare> kept = {};
  double kept_bytes = 0;  ///< memory that stays for its gradient, that no op before it kept already
  int kept_until = -1;    ///< the event at whose end that memory (or else its hold on it) is let go
  bool recorded = false;  ///< whether gradients flow through it
  int consumers = 0;      ///< input slots of recorded ops that read its outputs
};

/// Something that happened, in order.
struct TapeEvent {
  Phase phase;
  int op;  ///< which; -1: an optimizer's step
  std::string name;
  double start, seconds;   ///< start: since the tape began
  std::size_t live = 0;    ///< bytes in use on the device when it had computed
  std::vector<int> freed;  ///< ops whose kept memory was let go before the next event
};

/// A step. Made by TapeWatch.
struct Tape {
  std::vector<TapeTensor> tensors;
  std::vector<TapeOp> ops;
  std::vector<TapeEvent> events;
  /// Bytes in use on the device when it began, when the walk back began, and when it ended.
  std::size_t live_before = 0, live_after_forward = 0, live_after = 0;
  int peak_event = -1;            ///< with the most live bytes
  std::vector<MemoryShare> peak;  ///< of that event; the sum is its live bytes

  /// Of all events of a phase together.
  double seconds(Phase phase) const;
  /// Live at the peak.
  std::size_t peak_bytes() const;
};

/// Watches a step and writes its tape: hold it with an ObserverScope around forward pass, backward() and the
/// optimizer's step. The device is waited for before and after each op. No array is held, so that memory is
/// used as without it.
class TapeWatch final : public Observer {
 public:
  /// What is in memory before the step, by names ("parameters", "moments", "batch"): the peak says so, and no
  /// op keeps it.
  using Standing = std::vector<std::pair<std::string, std::vector<NDArray>>>;
  /// `names` are those of the leaves: parameters of a model.
  explicit TapeWatch(Device device, const std::vector<Parameter>& names = {}, Standing standing = {});

  /// Writes the ops of a graph that was recorded without it, in order, so that its walk can be watched.
  void adopt(const std::vector<std::shared_ptr<Node>>& nodes);
  /// From now on paths begin with this part ("gradient"), until it is "" again.
  void begin_part(std::string part) { part_ = std::move(part); }
  /// The step is over: what is still kept stays.
  Tape finish();

  void before(const OpEvent& event) override;
  void computed(std::span<const NDArray> outputs) override;
  void after(const OpEvent& event) override;
  bool reads_inputs_afterwards() const override { return false; }

 private:
  using Memory = std::weak_ptr<const Storage>;
  /// Memory from the event in which it came to stay to the one at whose end it was gone (-1: not yet).
  struct Stay {
    Memory memory;
    std::size_t bytes;
    int op;  ///< which keeps it; -1: a gradient of a leaf
    int since, until = -1;
  };
  struct ValueKey {
    const void* owner;  // a node or a leaf
    int output;
    friend auto operator<=>(const ValueKey&, const ValueKey&) = default;
  };

  int add_tensor(TapeTensor tensor);
  int tensor_of(const NDArray& array);
  /// The numbers of a node's inputs.
  std::vector<int> inputs_of(const Node& node, std::span<const NDArray> arrays);
  int add_op(const Node* node, const char* name, const std::string& path, std::span<const NDArray> inputs,
             std::span<const NDArray> outputs);
  void after_forward(const OpEvent& event);
  void after_backward(const OpEvent& event);
  void keep(int op, std::span<const NDArray> arrays, const OpEvent& event);
  /// Notes what was let go since the last event.
  void note_freed();
  std::vector<MemoryShare> composition_of(int event) const;

  Device device_;
  std::map<const void*, std::string> names_;                   // of leaves
  std::vector<std::pair<std::string, std::size_t>> standing_;  // bytes that are there all the time
  std::set<Memory, std::owner_less<>> stood_;
  std::string part_;
  Tape tape_;
  std::map<const Node*, int> ops_;
  std::map<ValueKey, int> values_;
  std::map<Memory, int, std::owner_less<>> memories_;  // the last tensor that lies there
  std::map<Memory, std::size_t, std::owner_less<>> stay_of_;
  std::vector<Stay> stays_;
  std::map<int, std::vector<std::size_t>> stays_of_op_;  // what it holds, whoever kept it first
  std::vector<std::size_t> expected_;                    // to be gone soon
  double bytes_in_ = 0;                                  // read by the backward op that runs
  Memory first_in_;                                      // its first input
  std::size_t live_ = 0;
  double origin_, started_ = 0, ended_ = 0;
};

}  // namespace needle
