// The reverse walk: counts consumers, uses no recursion, computes only what is needed, frees as it goes.
#include <algorithm>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include "needle/node.h"

namespace needle {

namespace {

/// The recorded sum of two gradients of one value.
struct AddGradientsOp final : Op {
  const char* name() const override { return "add"; }
  NDArrays compute(const NDArrays& x) override { return {binary(Add{}, x[0], x[1])}; }
  Tensors gradient(const Tensors& g, const Saved&, const Needs&) override { return {g[0], g[0]}; }
};

/// The sum of what has arrived at one value: a tensor while recording, otherwise a plain array.
struct GradientSum {
  NDArray array;
  Tensor tensor;

  bool empty() const { return !array.defined() && !tensor.defined(); }

  /// The first contribution is taken as it is; later ones go in place only where nobody else can see it.
  void add(NDArray gradient) {
    if (!array.defined())
      array = std::move(gradient);
    else if (array.is_exclusive())
      add_into(gradient, array);
    else
      array = binary(Add{}, array, gradient);
  }

  NDArray& buffer(const Shape& shape, DType dtype, Device device, bool& first) {
    first = !array.defined();
    if (first)
      array = NDArray::empty(shape, dtype, device);
    else if (!array.is_compact() || !array.is_exclusive())
      array = array.copy();
    return array;
  }
};

/// A value to which gradients flow: an output of a node, or a leaf.
struct Place {
  const void* owner;
  int output;
  friend bool operator==(const Place&, const Place&) = default;
};
struct PlaceHash {
  std::size_t operator()(const Place& place) const {
    return std::hash<const void*>()(place.owner) ^ (static_cast<std::size_t>(place.output) << 1);
  }
};

Place place_of(const Tensor& tensor) {
  if (tensor.is_leaf()) return {tensor.body().get(), -1};
  return {tensor.body()->node.get(), tensor.body()->output};
}

/// function(); a device that fails says where.
template <class F>
auto with_place(const Node& node, const F& function) {
  try {
    return function();
  } catch (const DeviceError& error) {
    rethrow_with_place(error, node.op->name(), Phase::backward, node.path);
  }
}

/// One walk, up to the borders. Without targets it visits everything and adds into the leaves' grad.
class Walk final : public GradientSums {
 public:
  Walk(const std::vector<Tensor>& ys, const std::vector<Tensor>* targets, const Borders& borders,
       bool differentiable, bool retain)
      : borders_(borders), differentiable_(differentiable), retain_(retain) {
    if (targets) {
      targeted_ = true;
      lowest_target_ = std::numeric_limits<std::int64_t>::max();
      for (const Tensor& x : *targets) {
        target_sums_[place_of(x)];
        lowest_target_ = std::min(lowest_target_, x.is_leaf() ? -1 : x.body()->node->depth);
      }
    }
    for (const Tensor& y : ys) {
      if (y.body()->node && !borders_.contains(y.body()->node.get())) roots_.push_back(y.body()->node);
    }
    find_useful();
    count_consumers();
  }

  void seed(const Tensor& y, const Tensor& gradient) {
    if (!y.requires_grad()) return;
    if (GradientSum* sum =
            sum_at(y.body()->node.get(), y.body()->output, y.is_leaf() ? y.body().get() : nullptr)) {
      contribute(*sum, gradient);
    }
  }

  void run() {
    std::vector<std::shared_ptr<Node>> ready;
    for (const auto& root : roots_) {
      const State* state = state_of(root.get());
      const bool waiting = std::find(ready.begin(), ready.end(), root) != ready.end();
      if (state->useful && state->awaited == 0 && !waiting) ready.push_back(root);
    }
    while (!ready.empty()) {
      const std::shared_ptr<Node> node = std::move(ready.back());
      ready.pop_back();
      visit(node);
      for (const Node::Slot& slot : node->inputs) {
        State* source = slot.node ? state_of(slot.node.get()) : nullptr;
        if (source && source->useful && --source->awaited == 0) ready.push_back(slot.node);
      }
      if (!retain_) node->release();
      states_.erase(node.get());
    }
    for (const std::shared_ptr<TensorBody>& leaf : touched_) {
      // A gradient that stays must not share its elements with anything.
      if (!leaf->grad.is_compact() || !leaf->grad.is_exclusive()) leaf->grad = leaf->grad.copy();
    }
  }

  const GradientSum& target(const Tensor& x) { return target_sums_[place_of(x)]; }

  // What the op that is being visited sees.
  bool needs(int input) const override { return needs_[static_cast<std::size_t>(input)]; }
  void add(int input, NDArray gradient) override {
    const Node::Slot& slot = visited_->inputs[static_cast<std::size_t>(input)];
    require(gradient.shape() == slot.shape, "backward of ", visited_->op->name(), ": the gradient of input ",
            input, " has the shape ", gradient.shape(), ", wanted ", slot.shape);
    require(gradient.dtype() == slot.dtype, "backward of ", visited_->op->name(), ": the gradient of input ",
            input, " is ", name_of(gradient.dtype()), ", wanted ", name_of(slot.dtype));
    with_sum(slot, [&](GradientSum& sum) { sum.add(std::move(gradient)); });
  }
  NDArray& sum(int input, bool& first) override {
    const Node::Slot& slot = visited_->inputs[static_cast<std::size_t>(input)];
    NDArray* result = nullptr;
    if (slot.leaf && !targeted_) {
      touched_.insert(slot.leaf);
      GradientSum leaf_sum{std::move(slot.leaf->grad), {}};
      slot.leaf->grad = leaf_sum.buffer(slot.shape, slot.dtype, slot.device, first);
      return slot.leaf->grad;
    }
    with_sum(slot,
             [&](GradientSum& sum) { result = &sum.buffer(slot.shape, slot.dtype, slot.device, first); });
    return *result;
  }

 private:
  struct State {
    bool useful = false;
    int awaited = 0;
    std::vector<GradientSum> outputs;
  };

  State* state_of(const Node* node) {
    const auto found = states_.find(const_cast<Node*>(node));
    return found == states_.end() ? nullptr : &found->second;
  }

  bool is_target(const Node::Slot& slot) const {
    if (slot.leaf) return !targeted_ || target_sums_.contains({slot.leaf.get(), -1});
    return targeted_ && slot.node && target_sums_.contains({slot.node.get(), slot.output});
  }
  bool useful(const Node::Slot& slot) {
    if (is_target(slot)) return true;
    const State* source = slot.node ? state_of(slot.node.get()) : nullptr;
    return source && source->useful;
  }

  /// Marks the nodes that lie on a path to a target, in post-order with a stack of its own.
  void find_useful() {
    std::vector<std::pair<Node*, std::size_t>> stack;
    const auto enter = [&](Node* node) {
      // What is no deeper than every target depends on none of them.
      if (borders_.contains(node) || node->depth <= lowest_target_) return;
      require(!node->released,
              "backward: this graph was walked before and is freed; pass retain_graph to walk it twice");
      if (states_.try_emplace(node).second) stack.emplace_back(node, 0);
    };
    for (const auto& root : roots_) {
      enter(root.get());
      while (!stack.empty()) {
        Node* const node = stack.back().first;
        const std::size_t next = stack.back().second++;
        if (next < node->inputs.size()) {
          if (Node* source = node->inputs[next].node.get()) enter(source);
          continue;
        }
        bool any = false;
        for (const Node::Slot& slot : node->inputs) any |= useful(slot);
        states_[node].useful = any;
        stack.pop_back();
      }
    }
  }

  void count_consumers() {
    for (auto& [node, state] : states_) {
      if (!state.useful) continue;
      state.outputs.resize(node->outputs.size());
      for (const Node::Slot& slot : node->inputs) {
        if (State* source = slot.node ? state_of(slot.node.get()) : nullptr; source && source->useful)
          ++source->awaited;
      }
    }
  }

  /// Where the gradient of this value is summed: in the visited graph, at a target, or nowhere.
  GradientSum* sum_at(const Node* node, int output, const TensorBody* leaf) {
    if (targeted_) {
      const auto found = target_sums_.find(leaf ? Place{leaf, -1} : Place{node, output});
      if (found != target_sums_.end()) return &found->second;
    }
    State* state = node ? state_of(node) : nullptr;
    return state && state->useful ? &state->outputs[static_cast<std::size_t>(output)] : nullptr;
  }

  template <class F>
  void with_sum(const Node::Slot& slot, F&& function) {
    if (slot.leaf && !targeted_) {
      touched_.insert(slot.leaf);
      GradientSum sum{std::move(slot.leaf->grad), {}};
      function(sum);
      slot.leaf->grad = std::move(sum.array);
    } else if (GradientSum* sum = sum_at(slot.node.get(), slot.output, slot.leaf.get())) {
      function(*sum);
    }
  }

  void contribute(GradientSum& sum, const Tensor& gradient) {
    if (!differentiable_)
      sum.add(gradient.array());
    else
      sum.tensor = sum.tensor.defined() ? apply_op<AddGradientsOp>({sum.tensor, gradient}) : gradient;
  }

  void visit(const std::shared_ptr<Node>& node) {
    State& state = *state_of(node.get());
    bool any = false;
    for (std::size_t i = 0; i < state.outputs.size(); ++i) {
      // A target inside the graph passes on what it received as well.
      if (targeted_) {
        const auto found = target_sums_.find({node.get(), static_cast<int>(i)});
        if (found != target_sums_.end()) state.outputs[i] = found->second;
      }
      any |= !state.outputs[i].empty();
    }
    if (!any) return;
    const Saved saved(node, !retain_);
    needs_.clear();
    for (const Node::Slot& slot : node->inputs) needs_.push_back(useful(slot));
    visited_ = node.get();
    if (differentiable_)
      visit_recording(*node, state, saved);
    else
      visit_fast(*node, state, saved);
  }

  void visit_recording(Node& node, State& state, const Saved& saved) {
    const PathScope scope(node.path);
    std::vector<Tensor> out_grads;
    for (std::size_t i = 0; i < state.outputs.size(); ++i) {
      const Node::Slot& slot = node.outputs[i];
      out_grads.push_back(state.outputs[i].tensor.defined()
                              ? state.outputs[i].tensor
                              : Tensor(NDArray::zeros(slot.shape, slot.dtype, slot.device)));
    }
    const Needs needs = needs_;
    const std::vector<Tensor> result =
        with_place(node, [&] { return node.op->gradient(out_grads, saved, needs); });
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      if (!needs[i]) continue;
      const Node::Slot& slot = node.inputs[i];
      require(result[i].defined() && result[i].shape() == slot.shape, "backward of ", node.op->name(),
              ": the gradient of input ", i, " is missing or not of the shape ", slot.shape);
      if (GradientSum* sum = sum_at(slot.node.get(), slot.output, slot.leaf.get()))
        contribute(*sum, result[i]);
    }
  }

  void visit_fast(Node& node, State& state, const Saved& saved) {
    std::vector<NDArray> out_grads;
    for (std::size_t i = 0; i < state.outputs.size(); ++i) {
      const Node::Slot& slot = node.outputs[i];
      NDArray& sum = state.outputs[i].array;
      out_grads.push_back(sum.defined() ? std::move(sum)
                                        : NDArray::zeros(slot.shape, slot.dtype, slot.device));
    }
    const auto add_gradient = [&] {
      with_place(node, [&] { node.op->add_gradient(std::move(out_grads), saved, *this); });
    };
    Observer* observer = current_observer();
    if (!observer) return add_gradient();
    const ObserverScope inner(nullptr);
    NDArrays inputs = out_grads, outputs, kept;
    for (const Node::Slot& slot : node.inputs) {
      if (slot.array.defined()) inputs.push_back(slot.array);
    }
    observer->before({node.op->name(), Phase::backward, node.path, inputs, {}, 0, {}, &node});
    if (!observer->reads_inputs_afterwards()) inputs.clear();
    add_gradient();
    observer->computed(inputs);
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      if (!needs_[i]) continue;
      const Node::Slot& slot = node.inputs[i];
      if (slot.leaf && !targeted_)
        outputs.push_back(kept.emplace_back(slot.leaf->grad));
      else if (const GradientSum* sum = sum_at(slot.node.get(), slot.output, slot.leaf.get()))
        outputs.push_back(sum->array);
    }
    observer->after({node.op->name(), Phase::backward, node.path, inputs, outputs,
                     node.op->gradient_operations(node.operations, needs_), kept, &node});
  }

  const Borders& borders_;
  std::int64_t lowest_target_ = -1;  // the least depth of a target; -1: a leaf
  bool differentiable_, retain_, targeted_ = false;
  std::unordered_map<Node*, State> states_;
  std::unordered_map<Place, GradientSum, PlaceHash> target_sums_;
  std::vector<std::shared_ptr<Node>> roots_;
  std::unordered_set<std::shared_ptr<TensorBody>> touched_;
  Needs needs_;
  const Node* visited_ = nullptr;
};

Tensor seed_of(const Tensor& y, const Tensor& given) {
  if (!given.defined()) {
    require(y.array().count() == 1, "backward: a start of shape ", y.shape(),
            " needs a seed gradient; only a single number has the natural one");
    return Tensor(NDArray::ones(y.shape(), y.dtype(), y.device()));
  }
  require(given.shape() == y.shape() && given.dtype() == y.dtype(), "backward: the seed is ",
          name_of(given.dtype()), given.shape(), ", the start ", name_of(y.dtype()), y.shape());
  return given;
}

}  // namespace

void Tensor::backward(const NDArray& seed, bool retain_graph) const {
  require(requires_grad(), "backward: nothing that this value was computed from requires a gradient");
  const Tensor start = seed_of(*this, seed.defined() ? Tensor(seed) : Tensor());
  const NoGrad off;
  if (is_leaf()) {
    body_->grad = grad().defined() ? binary(Add{}, grad(), start.array()) : start.array().copy();
    return;
  }
  const Borders none;
  Walk walk({*this}, nullptr, none, false, retain_graph);
  walk.seed(*this, start);
  walk.run();
}

std::vector<Tensor> gradients(const std::vector<Tensor>& ys, const std::vector<Tensor>& xs,
                              const std::vector<Tensor>& seeds, bool differentiable) {
  return gradients_within({}, ys, xs, seeds, differentiable);
}

std::vector<Tensor> gradients_within(const Borders& borders, const std::vector<Tensor>& ys,
                                     const std::vector<Tensor>& xs, const std::vector<Tensor>& seeds,
                                     bool differentiable) {
  require(seeds.empty() || seeds.size() == ys.size(), "gradients: ", ys.size(), " values, but ", seeds.size(),
          " seeds");
  for (std::size_t i = 0; i < xs.size(); ++i) {
    require(xs[i].defined() && xs[i].requires_grad(), "gradients: x ", i, ' ',
            xs[i].defined() ? xs[i].shape() : Shape{}, " does not require a gradient, so none was recorded");
  }
  const GradMode mode(differentiable);
  Walk walk(ys, &xs, borders, differentiable, true);
  for (std::size_t i = 0; i < ys.size(); ++i)
    walk.seed(ys[i], seed_of(ys[i], seeds.empty() ? Tensor() : seeds[i]));
  walk.run();
  std::vector<Tensor> result;
  for (const Tensor& x : xs) {
    const GradientSum& sum = walk.target(x);
    if (sum.tensor.defined())
      result.push_back(sum.tensor);
    else
      result.emplace_back(sum.array.defined() ? sum.array : NDArray::zeros(x.shape(), x.dtype(), x.device()));
  }
  return result;
}

}  // namespace needle
