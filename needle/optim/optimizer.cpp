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

Optimizer::Optimizer(std::vector<ParameterGroup> groups, const std::vector<std::string>& states)
    : groups_(std::move(groups)) {
  std::set<const TensorBody*> seen;
  for (const ParameterGroup& group : groups_) {
    for (const Parameter& parameter : group.parameters) {
      require(seen.insert(parameter.tensor.body().get()).second, "optimizer: ", parameter.name,
              " is there twice");
    }
  }
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

ParameterArrays Optimizer::arrays_of(std::size_t index, const ParameterGroup& group,
                                     const Parameter& parameter) {
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
  return {array.mutable_view(), gradient.view(), state(0), state(1), group.weight_decay};
}

void Optimizer::step(double learning_rate, double gradient_scale) {
  ++steps_;
  std::vector<ParameterArrays> arrays;
  const Parameter* first = nullptr;
  std::size_t index = 0;
  for (const ParameterGroup& group : groups_) {
    for (const Parameter& parameter : group.parameters) {
      if (parameter.tensor.grad().defined()) {
        if (!first) first = &parameter;
        require(parameter.tensor.device() == first->tensor.device(), "optimizer: ", first->name, " is on ",
                first->tensor.device().name(), ", but ", parameter.name, " on ",
                parameter.tensor.device().name());
        arrays.push_back(arrays_of(index, group, parameter));
      }
      ++index;
    }
  }
  if (first) step_arrays(first->tensor.device(), arrays, learning_rate, gradient_scale);
}

void Optimizer::clear_gradients() {
  for (ParameterGroup& group : groups_) {
    for (Parameter& parameter : group.parameters) parameter.tensor.clear_grad();
  }
}

Sgd::Sgd(std::vector<ParameterGroup> groups, double momentum, bool nesterov)
    : Optimizer(std::move(groups),
                momentum > 0 ? std::vector<std::string>{"velocity"} : std::vector<std::string>{}),
      momentum_(momentum),
      nesterov_(nesterov) {
  require(momentum >= 0 && momentum < 1, "sgd: momentum must be in [0, 1), got ", momentum);
  require(!nesterov || momentum > 0, "sgd: Nesterov's form needs a momentum");
}

void Sgd::step_arrays(Device device, const std::vector<ParameterArrays>& arrays, double learning_rate,
                      double gradient_scale) {
  device->sgd({learning_rate, momentum_, gradient_scale, nesterov_}, arrays);
}

Adam::Adam(std::vector<ParameterGroup> groups, AdamDecay decay, double beta1, double beta2, double epsilon)
    : Optimizer(std::move(groups), {"first", "second"}),
      decay_(decay),
      beta1_(beta1),
      beta2_(beta2),
      epsilon_(epsilon) {
  require(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1, "adam: betas must be in [0, 1), got ", beta1,
          " and ", beta2);
  require(epsilon > 0, "adam: epsilon must be positive, got ", epsilon);
}

void Adam::step_arrays(Device device, const std::vector<ParameterArrays>& arrays, double learning_rate,
                       double gradient_scale) {
  const double step = static_cast<double>(steps());
  device->adam({learning_rate, beta1_, beta2_, epsilon_, 1 - std::pow(beta1_, step),
                1 - std::pow(beta2_, step), gradient_scale, decay_ == AdamDecay::decoupled},
               arrays);
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
  result.norm = std::sqrt(device->sum_of_squares(views));
  result.finite = std::isfinite(result.norm);
  if (!result.finite) {
    for (std::size_t i = 0; i < views.size() && result.first_bad.empty(); ++i) {
      if (!std::isfinite(device->sum_of_squares({&views[i], 1}))) result.first_bad = owners[i]->name;
    }
  } else if (limit > 0 && result.norm > limit) {
    result.scale = limit / result.norm;
  }
  return result;
}

}  // namespace needle
