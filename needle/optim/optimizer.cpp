#include "needle/optim/optimizer.h"

#include <cmath>

namespace needle {

std::vector<ParameterGroup> groups_by_rank(const std::vector<Parameter>& parameters, double weight_decay) {
  std::vector<ParameterGroup> groups{{{}, weight_decay}, {{}, 0}};
  for (const Parameter& parameter : parameters) {
    if (!parameter.tensor.requires_grad()) continue;
    groups[parameter.tensor.rank() >= 2 ? 0 : 1].parameters.push_back(parameter);
  }
  return groups;
}

void Optimizer::step(double learning_rate, double gradient_scale) {
  ++steps_;
  std::size_t index = 0;
  for (ParameterGroup& group : groups_) {
    for (Parameter& parameter : group.parameters) {
      if (parameter.tensor.grad().defined()) {
        NDArray array = parameter.tensor.array();
        const NDArray& gradient = parameter.tensor.grad();
        require(gradient.shape() == array.shape() && gradient.dtype() == array.dtype() &&
                    array.is_compact() && gradient.is_compact(),
                "optimizer: ", parameter.name, " is ", name_of(array.dtype()), array.shape(),
                ", its gradient ", name_of(gradient.dtype()), gradient.shape());
        step_parameter(index, group.weight_decay, array, parameter.tensor.grad(), learning_rate,
                       gradient_scale);
      }
      ++index;
    }
  }
}

void Optimizer::clear_gradients() {
  for (ParameterGroup& group : groups_) {
    for (Parameter& parameter : group.parameters) parameter.tensor.clear_grad();
  }
}

std::vector<Parameter> Optimizer::zeros_like_parameters(const std::string& prefix) const {
  std::vector<Parameter> result;
  for (const ParameterGroup& group : groups_) {
    for (const Parameter& parameter : group.parameters) {
      const NDArray& array = parameter.tensor.array();
      result.push_back({prefix + parameter.name,
                        Tensor(NDArray::zeros(array.shape(), array.dtype(), array.device())),
                        false,
                        {}});
    }
  }
  return result;
}

namespace {

/// The state of a parameter. Throws when that has become something else since the optimizer was made.
View state_view(std::vector<Parameter>& state, std::size_t index, const NDArray& parameter) {
  NDArray array = state[index].tensor.array();
  require(array.dtype() == parameter.dtype() && array.shape() == parameter.shape(),
          "optimizer: ", state[index].name, " is ", name_of(array.dtype()), array.shape(),
          ", but its parameter became ", name_of(parameter.dtype()), parameter.shape());
  return array.mutable_view();
}

}  // namespace

Sgd::Sgd(std::vector<ParameterGroup> groups, double momentum, bool nesterov)
    : Optimizer(std::move(groups)), momentum_(momentum), nesterov_(nesterov) {
  require(momentum >= 0 && momentum < 1, "sgd: momentum must be in [0, 1), got ", momentum);
  require(!nesterov || momentum > 0, "sgd: Nesterov's form needs a momentum");
  if (momentum > 0) velocity_ = zeros_like_parameters("velocity.");
}

void Sgd::step_parameter(std::size_t index, double weight_decay, NDArray& parameter, const NDArray& gradient,
                         double learning_rate, double gradient_scale) {
  parameter.device()->sgd({learning_rate, momentum_, weight_decay, gradient_scale, nesterov_},
                          parameter.mutable_view(), gradient.view(),
                          velocity_.empty() ? View{} : state_view(velocity_, index, parameter));
}

Adam::Adam(std::vector<ParameterGroup> groups, AdamDecay decay, double beta1, double beta2, double epsilon)
    : Optimizer(std::move(groups)), decay_(decay), beta1_(beta1), beta2_(beta2), epsilon_(epsilon) {
  require(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1, "adam: betas must be in [0, 1), got ", beta1,
          " and ", beta2);
  require(epsilon > 0, "adam: epsilon must be positive, got ", epsilon);
  first_ = zeros_like_parameters("first.");
  second_ = zeros_like_parameters("second.");
}

std::vector<Parameter> Adam::state() {
  std::vector<Parameter> both = first_;
  both.insert(both.end(), second_.begin(), second_.end());
  return both;
}

void Adam::step_parameter(std::size_t index, double weight_decay, NDArray& parameter, const NDArray& gradient,
                          double learning_rate, double gradient_scale) {
  const double step = static_cast<double>(steps());
  parameter.device()->adam({learning_rate, beta1_, beta2_, epsilon_, weight_decay, 1 - std::pow(beta1_, step),
                            1 - std::pow(beta2_, step), gradient_scale, decay_ == AdamDecay::decoupled},
                           parameter.mutable_view(), gradient.view(), state_view(first_, index, parameter),
                           state_view(second_, index, parameter));
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
