#include "needle/optim/optimizer.h"

#include <cmath>
#include <set>

namespace needle {

std::vector<ParameterGroup> groups_by_rank(const std::vector<Parameter>& parameters, double weight_decay) {
  std::vector<ParameterGroup> groups{{{}, weight_decay}, {{}, 0}};
  for (const Parameter& parameter : parameters) {
    if (!parameter.tensor.requires_grad()) continue;
    groups[parameter.tensor.rank() >= 2 ? 0 : 1].parameters.push_back(parameter);
  }
  return groups;
}

namespace {

/// A StepState before the first step.
NDArray new_state(Device device) {
  const NDArray state = NDArray::empty({kStepNumbers}, DType::f64, device);
  const StepState start;
  device->copy_from_host(&start, state.view().data, sizeof(start));
  return state;
}

}  // namespace

Optimizer::Optimizer(std::vector<ParameterGroup> groups, const std::vector<std::string>& states)
    : groups_(std::move(groups)) {
  std::set<const TensorBody*> seen;
  for (const ParameterGroup& group : groups_) {
    for (const Parameter& parameter : group.parameters) {
      require(seen.insert(parameter.tensor.body().get()).second, "optimizer: ", parameter.name,
              " is there twice");
    }
  }
  Device device = cpu();
  for (const ParameterGroup& group : groups_) {
    if (!group.parameters.empty()) device = group.parameters.front().tensor.device();
  }
  state_ = new_state(device);
  for (const std::string& name : states) {
    std::vector<Parameter>& state = states_.emplace_back();
    for (const ParameterGroup& group : groups_) {
      for (const Parameter& parameter : group.parameters) {
        const NDArray& array = parameter.tensor.array();
        state.push_back({name + '.' + parameter.name,
                         Tensor(NDArray::zeros(array.shape(), array.dtype(), array.device())),
                         false,
                         {}});
      }
    }
  }
}

std::vector<Parameter> Optimizer::state() const {
  std::vector<Parameter> all;
  for (const std::vector<Parameter>& state : states_) all.insert(all.end(), state.begin(), state.end());
  return all;
}

ParameterArrays Optimizer::arrays_of(std::size_t index, double weight_decay, const Parameter& parameter) {
  NDArray array = parameter.tensor.array();
  const NDArray& gradient = parameter.tensor.grad();
  require(gradient.shape() == array.shape() && gradient.dtype() == array.dtype() && array.is_compact() &&
              gradient.is_compact(),
          "optimizer: ", parameter.name, " is ", name_of(array.dtype()), array.shape(), ", its gradient ",
          name_of(gradient.dtype()), gradient.shape());
  const auto state = [&](std::size_t number) {
    if (number >= states_.size()) return View{};
    NDArray kept = states_[number][index].tensor.array();
    require(kept.dtype() == array.dtype() && kept.shape() == array.shape(),
            "optimizer: ", states_[number][index].name, " is ", name_of(kept.dtype()), kept.shape(),
            ", but its parameter became ", name_of(array.dtype()), array.shape());
    return kept.mutable_view();
  };
  const auto [elements, rounded] = array.mutable_views();
  return {elements, gradient.view(), state(0), state(1), rounded, weight_decay};
}

std::vector<std::pair<std::size_t, const Parameter*>> Optimizer::with_gradients() const {
  std::vector<std::pair<std::size_t, const Parameter*>> result;
  std::size_t index = 0;
  for (const ParameterGroup& group : groups_) {
    for (const Parameter& parameter : group.parameters) {
      if (parameter.tensor.grad().defined()) {
        if (!result.empty()) {
          const Parameter& first = *result.front().second;
          require(parameter.tensor.device() == first.tensor.device(), "optimizer: ", first.name, " is on ",
                  first.tensor.device().name(), ", but ", parameter.name, " on ",
                  parameter.tensor.device().name());
        }
        result.emplace_back(index, &parameter);
      }
      ++index;
    }
  }
  return result;
}

void Optimizer::step(double learning_rate, double gradient_scale) {
  set_learning_rate(learning_rate);
  set(&StepState::gradient_scale, gradient_scale);
  set(&StepState::first_bad, -1);
  step();
}

void Optimizer::step() {
  std::vector<double> decays;
  for (const ParameterGroup& group : groups_)
    decays.insert(decays.end(), group.parameters.size(), group.weight_decay);
  std::vector<ParameterArrays> arrays;
  for (const auto& [index, parameter] : with_gradients())
    arrays.push_back(arrays_of(index, decays[index], *parameter));
  Observer* const observer = current_observer();
  const NDArray states[] = {state_};  // whose device is waited for
  if (observer) observer->before({name(), Phase::optimizer, current_path(), states, {}, 0});
  step_arrays(state_.device(), arrays, state_.mutable_view());
  if (!observer) return;
  observer->computed(states);
  observer->after({name(), Phase::optimizer, current_path(), states, {}, 0});
}

void Optimizer::clip(const ClippingSettings& settings) {
  clipped_.clear();
  std::vector<View> gradients;
  for (const auto& [index, parameter] : with_gradients()) {
    clipped_.push_back(parameter);
    gradients.push_back(parameter->tensor.grad().view());
  }
  state_.device()->clip(settings, gradients, state_.mutable_view());
}

void Optimizer::set(double StepState::*member, double value) {
  const StepState layout;
  const auto place = &(layout.*member) - &layout.learning_rate;
  NDArray number = state_[place];
  number.device()->fill(value, number.mutable_view());
}

void Optimizer::set_learning_rate(double learning_rate) { set(&StepState::learning_rate, learning_rate); }
void Optimizer::set_steps(std::int64_t steps) { set(&StepState::steps, static_cast<double>(steps)); }
void Optimizer::set_loss_scale(double scale, double good_steps) {
  set(&StepState::loss_scale, scale);
  set(&StepState::good_steps, good_steps);
}

NDArray Optimizer::loss_scale() const {
  const StepState layout;
  return state_[&layout.loss_scale - &layout.learning_rate].cast(DType::f32);
}

StepState Optimizer::step_state() const {
  StepState result;
  state_.device()->copy_to_host(state_.view().data, &result, sizeof(result));
  return result;
}

const std::string& Optimizer::name_of_gradient(double number) const {
  return clipped_.at(static_cast<std::size_t>(number))->name;
}

void Optimizer::clear_gradients() {
  for (ParameterGroup& group : groups_) {
    for (Parameter& parameter : group.parameters) parameter.tensor.clear_grad();
  }
}

Sgd::Sgd(std::vector<ParameterGroup> groups, double momentum, bool nesterov)
    : Optimizer(std::move(groups),
                momentum > 0 ? std::vector<std::string>{"velocity"} : std::vector<std::string>{}),
      settings_{momentum, nesterov} {
  require(momentum >= 0 && momentum < 1, "sgd: momentum must be in [0, 1), got ", momentum);
  require(!nesterov || momentum > 0, "sgd: Nesterov's form needs a momentum");
}

void Sgd::step_arrays(Device device, const std::vector<ParameterArrays>& arrays, const View& state) {
  device->sgd(settings_, arrays, state);
}

Adam::Adam(std::vector<ParameterGroup> groups, AdamDecay decay, double beta1, double beta2, double epsilon)
    : Optimizer(std::move(groups), {"first", "second"}),
      settings_{beta1, beta2, epsilon, decay == AdamDecay::decoupled} {
  require(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1, "adam: betas must be in [0, 1), got ", beta1,
          " and ", beta2);
  require(epsilon > 0, "adam: epsilon must be positive, got ", epsilon);
}

void Adam::step_arrays(Device device, const std::vector<ParameterArrays>& arrays, const View& state) {
  device->adam(settings_, arrays, state);
}

GradientNorm gradient_norm(const std::vector<Parameter>& parameters, double limit) {
  std::vector<View> views;
  std::vector<const Parameter*> owners;
  for (const Parameter& parameter : parameters) {
    if (!parameter.tensor.grad().defined()) continue;
    views.push_back(parameter.tensor.grad().view());
    owners.push_back(&parameter);
  }
  GradientNorm result;
  if (views.empty()) return result;
  Device device = owners[0]->tensor.device();
  StepState state;
  NDArray kept = new_state(device);
  device->clip({limit, false}, views, kept.mutable_view());
  device->copy_to_host(kept.view().data, &state, sizeof(state));
  result.norm = state.gradient_norm;
  result.finite = state.first_bad < 0;
  if (result.finite)
    result.scale = state.gradient_scale;
  else
    result.first_bad = owners[static_cast<std::size_t>(state.first_bad)]->name;
  return result;
}

}  // namespace needle
