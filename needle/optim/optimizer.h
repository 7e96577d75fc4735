// Optimizers: parameter groups, the state that a checkpoint keeps, and the clipping of gradients.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "needle/nn/module.h"

namespace needle {

/// Parameters that share a weight decay.
struct ParameterGroup {
  std::vector<Parameter> parameters;
  double weight_decay = 0;
};

/// Two groups: tensors of two or more axes decay, vectors (biases, norm gains) do not. Frozen ones are left
/// out.
std::vector<ParameterGroup> groups_by_rank(const std::vector<Parameter>& parameters, double weight_decay);

/// Steps a set of parameters down their gradients. A parameter without gradient is left as it is.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// One step at `learning_rate`, with all gradients multiplied by `gradient_scale`.
  void step(double learning_rate, double gradient_scale = 1);
  void clear_gradients();
  const std::vector<ParameterGroup>& groups() const { return groups_; }
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }

  /// The state to save beside the step count, as named tensors ("first.<parameter>", ...): the live ones, so
  /// that loading replaces their numbers.
  std::vector<Parameter> state() const;

 protected:
  /// For each of `states` (at most two), keeps zeros shaped like all parameters.
  Optimizer(std::vector<ParameterGroup> groups, const std::vector<std::string>& states);
  /// Steps all of these.
  virtual void step_arrays(Device device, const std::vector<ParameterArrays>& arrays, double learning_rate,
                           double gradient_scale) = 0;

 private:
  /// The step of parameter number `index`, counted through the groups.
  ParameterArrays arrays_of(std::size_t index, const ParameterGroup& group, const Parameter& parameter);

  std::vector<ParameterGroup> groups_;
  std::vector<std::vector<Parameter>> states_;
  std::int64_t steps_ = 0;
};

/// Stochastic gradient descent: u = momentum u + (g + decay w); w -= rate u, or with Nesterov's look ahead
/// w -= rate (g + decay w + momentum u) (Sutskever et al. 2013, section 2).
class Sgd : public Optimizer {
 public:
  explicit Sgd(std::vector<ParameterGroup> groups, double momentum = 0, bool nesterov = false);

 protected:
  void step_arrays(Device device, const std::vector<ParameterArrays>& arrays, double learning_rate,
                   double gradient_scale) override;

 private:
  double momentum_;
  bool nesterov_;
};

/// How Adam decays weights: through the gradient (Kingma and Ba 2015), or apart from it, times the rate
/// (AdamW, Loshchilov and Hutter 2019, algorithm 2).
enum class AdamDecay { coupled, decoupled };

/// Adam and AdamW.
class Adam : public Optimizer {
 public:
  explicit Adam(std::vector<ParameterGroup> groups, AdamDecay decay, double beta1 = 0.9, double beta2 = 0.999,
                double epsilon = 1e-8);

 protected:
  void step_arrays(Device device, const std::vector<ParameterArrays>& arrays, double learning_rate,
                   double gradient_scale) override;

 private:
  AdamDecay decay_;
  double beta1_, beta2_, epsilon_;
};

/// The norm of all gradients together, and the factor that brings it down to `limit` (1 where it is below;
/// limit 0: never).
struct GradientNorm {
  double norm = 0;
  double scale = 1;
  bool finite = true;     ///< false: an infinity or NaN is among the gradients, and the step must be skipped
  std::string first_bad;  ///< the first parameter with a gradient that is not finite
};
GradientNorm gradient_norm(const std::vector<Parameter>& parameters, double limit);

}  // namespace needle
