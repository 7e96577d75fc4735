// The recorded graph: one node an application of an op. Internal to autograd and to what inspects graphs.
#pragma once

#include <unordered_set>

#include "needle/autograd.h"

namespace needle {

/// An application of an op: where its inputs came from, and what its gradient reads of them.
struct Node {
  struct Slot {
    Slot(const NDArray& from, bool keep);
    Shape shape;
    DType dtype;
    Device device;
    std::uint64_t writes;              ///< of the storage, when recorded
    NDArray array;                     ///< only if the gradient reads it
    std::shared_ptr<Node> node;        ///< what computed this input, if that was recorded
    int output = 0;                    ///< as which of its outputs
    std::shared_ptr<TensorBody> leaf;  ///< the leaf that this input is, if it requires a gradient
  };

  Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  ~Node() { release(); }

  /// Lets go of everything it kept.
  void release();

  std::unique_ptr<Op> op;
  std::vector<Slot> inputs, outputs;
  std::string path;
  double operations = 0;  ///< of compute(), where an observer watched it
  bool released = false;
  std::int64_t number = 0;  ///< in the order in which this thread recorded
  std::int64_t depth = 0;   ///< one more than the deepest of the nodes that its inputs came from
};

/// What would be gone without the node: not the parameters.
NDArrays kept_by(const Node& node);

/// Every node that `y` depends on, in the order of execution. Throws where the graph was freed.
std::vector<std::shared_ptr<Node>> nodes_of(const Tensor& y);

/// Nodes that a walk does not enter.
using Borders = std::unordered_set<const Node*>;

/// gradients() by a walk that stops at `borders`: what lies beyond them neither counts nor costs.
std::vector<Tensor> gradients_within(const Borders& borders, const std::vector<Tensor>& ys,
                                     const std::vector<Tensor>& xs, const std::vector<Tensor>& seeds,
                                     bool differentiable);

}  // namespace needle
