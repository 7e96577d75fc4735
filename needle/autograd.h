// Define-by-run reverse-mode differentiation: tensors, ops, the recorded graph and the walk back through it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "needle/ndarray.h"
#include "needle/observer.h"

namespace needle {

struct Node;

/// What all handles of one tensor share.
struct TensorBody {
  NDArray array;
  NDArray grad;  ///< of a leaf, after backward()
  bool requires_grad = false;
  std::shared_ptr<Node> node;  ///< what computed it; none for a leaf
  int output = 0;              ///< which of the node's outputs it is
};

/// An array and its place in the recorded computation. A handle: copies are the same tensor.
class Tensor {
 public:
  /// No tensor at all; defined() is false.
  Tensor() = default;
  /// A leaf: a constant, or something to be trained when `requires_grad`.
  explicit Tensor(NDArray array, bool requires_grad = false);
  explicit Tensor(std::shared_ptr<TensorBody> body) : body_(std::move(body)) {}

  bool defined() const { return body_ != nullptr; }
  const NDArray& array() const { return body_->array; }
  const Shape& shape() const { return array().shape(); }
  std::int64_t size(int axis) const { return array().size(axis); }
  int rank() const { return array().rank(); }
  DType dtype() const { return array().dtype(); }
  Device device() const { return array().device(); }
  double item() const { return array().item(); }
  const std::shared_ptr<TensorBody>& body() const { return body_; }

  bool requires_grad() const { return body_->requires_grad; }
  /// Only for leaves, of a floating type.
  void set_requires_grad(bool wanted);
  bool is_leaf() const { return body_->node == nullptr; }
  /// The same numbers as a constant.
  Tensor detach() const { return Tensor(array()); }
  /// Replaces the numbers of a leaf (a loaded value, another type or device); every handle sees it.
  void set_array(NDArray array);

  /// The gradient of a leaf, added up over backward() calls; undefined when there was none.
  const NDArray& grad() const { return body_->grad; }
  NDArray& mutable_grad() { return body_->grad; }
  void clear_grad() { body_->grad = NDArray(); }

  /// Adds d(this)/d(leaf) into the grad of every leaf it depends on, then frees the graph unless it is to be
  /// retained. Without `seed` (the gradient of this tensor) it must have one element. Throws on a graph that
  /// was freed already, and when a value was overwritten after it was recorded.
  void backward(const NDArray& seed = {}, bool retain_graph = false) const;

 private:
  std::shared_ptr<TensorBody> body_;
};

/// d(sum of <seed, y>)/dx for each of `xs`, zeros where nothing depends on it; no leaf's grad is touched.
/// `differentiable` records the computation, so that the result can be differentiated again; otherwise
/// the graph is kept too, and can be walked again. Seeds default to ones for one-element ys.
std::vector<Tensor> gradients(const std::vector<Tensor>& ys, const std::vector<Tensor>& xs,
                              const std::vector<Tensor>& seeds = {}, bool differentiable = false);
inline std::vector<Tensor> gradients(const Tensor& y, const std::vector<Tensor>& xs, const Tensor& seed = {},
                                     bool differentiable = false) {
  return gradients(std::vector{y}, xs, seed.defined() ? std::vector{seed} : std::vector<Tensor>{},
                   differentiable);
}

/// Whether ops are recorded on this thread.
bool grad_enabled();

/// Switches recording on or off on this thread, as long as the scope lives.
class GradMode {
 public:
  explicit GradMode(bool enabled);
  GradMode(const GradMode&) = delete;
  GradMode& operator=(const GradMode&) = delete;
  ~GradMode();

 private:
  bool previous_;
};

/// No recording on this thread, as long as the scope lives.
class NoGrad : public GradMode {
 public:
  NoGrad() : GradMode(false) {}
};

using Tensors = std::vector<Tensor>;
using NDArrays = std::vector<NDArray>;

/// What an op's gradient reads, a bit an input and a bit an output. What nobody reads is freed at once.
struct Reads {
  std::uint64_t inputs = 0, outputs = 0;
  static constexpr std::uint64_t kAll = ~std::uint64_t{0};
};

/// Which inputs want a gradient.
using Needs = std::vector<bool>;

/// What a node kept of its application: the arrays that the gradient reads, and the shape of everything.
class Saved {
 public:
  explicit Saved(const std::shared_ptr<Node>& node, bool exclusive) : node_(node), exclusive_(exclusive) {}
  /// As tensors with their place in the graph, for gradient(). Throws when overwritten since.
  Tensor input(int index) const;
  Tensor output(int index) const;
  /// As arrays, for add_gradient().
  const NDArray& input_array(int index) const;
  const NDArray& output_array(int index) const;
  const Shape& input_shape(int index) const;
  const Shape& output_shape(int index) const;
  DType input_dtype(int index) const;
  int input_count() const;
  /// Whether nobody will walk this node again.
  bool is_last_walk() const { return exclusive_; }
  /// Whether the kept array of this input may be overwritten: nobody else will ever read it.
  bool may_overwrite_input(int index) const;

 private:
  const std::shared_ptr<Node>& node_;
  bool exclusive_;
};

/// Where add_gradient() leaves its results: one sum an input, kept up over all consumers of that input.
class GradientSums {
 public:
  virtual ~GradientSums() = default;
  virtual bool needs(int input) const = 0;
  /// Adds `gradient` (taken as it is when it is the first).
  virtual void add(int input, NDArray gradient) = 0;
  /// The compact buffer of the sum, to be added to in place; with `first`, it is new and must be overwritten.
  virtual NDArray& sum(int input, bool& first) = 0;
  /// The same for a kernel: where the gradient is not needed, a place without data.
  GradientPlace place(int input) {
    if (!needs(input)) return {};
    bool first = false;
    NDArray& buffer = sum(input, first);
    return {buffer.mutable_view(), !first};
  }
};

/// One application of an operation: `compute` on arrays and `gradient` on tensors, side by side.
class Op {
 public:
  virtual ~Op() = default;
  virtual const char* name() const = 0;
  /// The outputs. May keep statistics for its kernel in the op itself.
  virtual std::vector<NDArray> compute(const std::vector<NDArray>& inputs) = 0;
  /// The definition of the gradient, itself differentiable: one tensor an input; undefined where not needed.
  virtual std::vector<Tensor> gradient(const std::vector<Tensor>& out_grads, const Saved& saved,
                                       const Needs& needs) = 0;
  /// The fast gradient; by default gradient() without recording.
  virtual void add_gradient(std::vector<NDArray> out_grads, const Saved& saved, GradientSums& into);
  virtual Reads reads() const { return {}; }
  /// What the op itself holds: what compute() left for the gradient, and arrays that it was made with.
  virtual NDArrays kept() const { return {}; }
  /// Arithmetic operations of compute(), counted from the arrays: by default one an output element.
  virtual double operations(std::span<const NDArray> inputs, std::span<const NDArray> outputs) const;
  /// The same of the gradient, given those of compute(): by default as many again for each input that needs
  /// one.
  virtual double gradient_operations(double forward, const Needs& needs) const;
};

/// A fused op: `compute` and `add_gradient` call the backend's kernels, `definition` says the same in simple
/// ops. Its gradient differentiates the definition, so that every order of derivative is there and agrees.
class FusedOp : public Op {
 public:
  virtual std::vector<Tensor> definition(const std::vector<Tensor>& inputs) const = 0;
  /// How many of the inputs the definition takes from its argument; further ones it has captured.
  virtual int passed_inputs(int all) const { return all; }
  std::vector<Tensor> gradient(const std::vector<Tensor>& out_grads, const Saved& saved,
                               const Needs& needs) override;
  Reads reads() const override { return {Reads::kAll, 0}; }
};

/// Runs `op` on `inputs` and records it where gradients may be asked for.
std::vector<Tensor> apply_op(std::unique_ptr<Op> op, const std::vector<Tensor>& inputs);

/// apply_op() for an op with one output, built from its arguments: `apply_op<PowerOp>({x}, exponent)`.
template <class O, class... Arguments>
Tensor apply_op(const std::vector<Tensor>& inputs, Arguments&&... arguments) {
  return apply_op(std::make_unique<O>(std::forward<Arguments>(arguments)...), inputs)[0];
}

/// The leaves that require a gradient and that `ys` depend on, each once.
std::vector<Tensor> leaves_of(const std::vector<Tensor>& ys);

}  // namespace needle
