// The numbers of a step: what every tensor of a tape held, its gradient, and how single numbers make the
// loss.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "needle/inspect/tape.h"

namespace needle {

/// Keeps the inputs and outputs of every op while an ObserverScope holds it.
class ArrayKeeper final : public Observer {
 public:
  struct Call {
    const char* op;
    std::int64_t node;  ///< its number, for it may be gone; -1: there was none
    NDArrays inputs, outputs;
  };
  void after(const OpEvent& event) override;
  const std::vector<Call>& calls() const { return calls_; }

 private:
  std::vector<Call> calls_;
};

/// What a step computed with, of a loss whose graph is there still; the tape must outlive it. Without a
/// keeper, values that the graph did not keep are computed again from what it did; those that cannot be are
/// undefined.
class TapeValues {
 public:
  /// The calls of `keeper` (or else the nodes of `loss`) are to be the ops of `tape`; throws when they are
  /// not.
  TapeValues(const Tape& tape, const Tensor& loss, const ArrayKeeper* keeper = nullptr);

  /// What tensor number `tensor` held; undefined where that is not known.
  const NDArray& value(int tensor) const { return values_[static_cast<std::size_t>(tensor)]; }
  /// d loss / d tensor; undefined where the loss does not depend on it.
  const NDArray& gradient(int tensor) const { return gradients_[static_cast<std::size_t>(tensor)]; }
  /// Of an op that is recorded and that the loss depends on, else null.
  const std::shared_ptr<Node>& node(int op) const { return nodes_[static_cast<std::size_t>(op)]; }
  int loss() const { return loss_; }
  /// Operations of an op as counters.h counts them; 0 where an array of it is not known.
  double operations(int op) const;
  /// Computes an op again and writes how long that took and what it moved; nothing where an input is unknown.
  void compute_again(int number, TapeOp& op) const;

  /// d output / d entry of `tensor`, for each output of `op` that it enters: exact, by differentiating the
  /// op's gradient, which is linear in what comes in. Undefined where nothing depends on it.
  NDArrays column(int op, int tensor, std::int64_t entry) const;
  /// d loss / d entry by central differences of the ops that follow, extrapolated (gradient_check.h). None
  /// where an op on the way cannot be computed again.
  std::optional<double> finite_difference(int tensor, std::int64_t entry) const;

 private:
  void recompute();
  NDArray loss_with(int tensor, const NDArray& changed) const;

  const Tape& tape_;
  std::vector<NDArray> values_, gradients_;
  std::vector<NDArrays> inputs_;  // of each op, as it saw them
  std::vector<std::shared_ptr<Node>> nodes_;
  int loss_ = -1;
};

/// How an entry of a tensor makes the loss: its gradient as the sum of products, one a number that it enters.
struct ChainStep {
  struct Part {
    int op, output;      ///< the op that it enters, and the tensor that this makes
    std::int64_t entry;  ///< of that tensor, row-major
    double factor;       ///< d output / d entry
    double gradient;     ///< d loss / d output
    int next = -1;       ///< the step that goes on from there, or none
    double product() const { return factor * gradient; }
  };
  int tensor;
  std::int64_t entry;
  double value, gradient;
  std::vector<Part> parts;  ///< the largest products first
  std::int64_t rest_count = 0;
  double rest_sum = 0;  ///< of the parts that are not listed
};

/// An entry that was followed to the loss.
struct FollowedNumber {
  int tensor;
  std::int64_t entry;
  double value, gradient;
  std::optional<double> finite_difference;
  int chain;  ///< its first step
};

/// Follows entries to the loss, always along the largest part.
struct FollowedNumbers {
  std::vector<FollowedNumber> numbers;
  std::vector<ChainStep> chain;
};
/// Each of `entries` is a tensor and a row-major place in it.
FollowedNumbers follow(const Tape& tape, const TapeValues& values,
                       const std::vector<std::pair<int, std::int64_t>>& entries);

/// Numbers worth following: of the loss, of what the last layer gives it, and of up to `parameters`
/// parameters the entry with the largest gradient.
std::vector<std::pair<int, std::int64_t>> entries_worth_following(const Tape& tape, const TapeValues& values,
                                                                  int parameters);

/// A fused op beside its definition in simple ops.
struct DefinitionOfOp {
  Tape tape;                            ///< of the definition on the same inputs
  double difference = 0, relative = 0;  ///< the largest of the outputs; and over the largest output
};
/// Of a fused op all of whose inputs are known, else none.
std::optional<DefinitionOfOp> definition_of(const Tape& tape, const TapeValues& values, int op);

}  // namespace needle
