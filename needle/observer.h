// Watching ops as they run: one thread-local observer, and the dotted path of the module that is running.
#pragma once

#include <span>
#include <string>

#include "needle/ndarray.h"

namespace needle {

struct Node;

/// Whether an op computes its outputs or the gradients of its inputs, or an optimizer steps.
enum class Phase { forward, backward, optimizer };
inline const char* name_of(Phase phase) {
  return phase == Phase::forward ? "forward" : phase == Phase::backward ? "backward" : "optimizer";
}

/// One application of an op. Forward: its inputs and outputs. Backward: the kept inputs and the incoming
/// gradients as inputs, the gradients of its inputs as outputs. An optimizer's step: its numbers as inputs.
struct OpEvent {
  const char* op;
  Phase phase;
  const std::string& path;  ///< dotted path of the module that applied it, "" outside of any
  std::span<const NDArray> inputs, outputs;
  double operations;  ///< arithmetic operations, as counters.h counts them; backward: 0 if nobody watched
                      ///< forward
  /// Forward: what the graph keeps for the gradient, parameters left out. Backward: gradients that stay with
  /// leaves.
  std::span<const NDArray> kept = {};
  const Node* node = nullptr;  ///< what recorded the op (needle/node.h); none where nothing did
};

/// Is told of every op while an ObserverScope holds it. Ops that an op uses inside are part of it and not
/// told.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void before(const OpEvent&) {}
  /// At once when the op has computed `outputs`; after() follows when its operations are counted.
  virtual void computed(std::span<const NDArray> /*outputs*/) {}
  virtual void after(const OpEvent&) = 0;
  /// Whether after() of a backward event reads its inputs. As long as they are held for it, no gradient can
  /// overwrite one of them, and memory is used that would not be otherwise.
  virtual bool reads_inputs_afterwards() const { return true; }
};

/// Throws what a device failed at again, with the op and the module whose work it was.
[[noreturn]] void rethrow_with_place(const DeviceError& error, const char* op, Phase phase,
                                     const std::string& path);

/// The observer of this thread, or none.
Observer* current_observer();

/// Makes `observer` (or none) the observer of this thread, as long as the scope lives.
class ObserverScope {
 public:
  explicit ObserverScope(Observer* observer);
  ObserverScope(const ObserverScope&) = delete;
  ObserverScope& operator=(const ObserverScope&) = delete;
  ~ObserverScope();

 private:
  Observer* previous_;
};

/// The path of the module that is running on this thread.
const std::string& current_path();

/// Enters the module at `path`, which must outlive the scope, as long as the scope lives.
class PathScope {
 public:
  explicit PathScope(const std::string& path);
  explicit PathScope(std::string&&) = delete;
  PathScope(const PathScope&) = delete;
  PathScope& operator=(const PathScope&) = delete;
  ~PathScope();

 private:
  const std::string* previous_;
};

}  // namespace needle
