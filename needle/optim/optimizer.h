// Optimizers: parameter groups, the state that a checkpoint keeps, and the clipping of gradients.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
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
  /// "adamw", as observers are told.
  virtual const char* name() const = 0;

  /// One step at `learning_rate`, with all gradients multiplied by `gradient_scale`.
  void step(double learning_rate, double gradient_scale = 1);
  void clear_gradients();
  const std::vector<ParameterGroup>& groups() const { return groups_; }

  // The same in parts, none of which waits for the device: what a step depends on is kept in its memory.
  void set_learning_rate(double learning_rate);
  /// Measures all gradients, and sets the scale that clips them. Where one is not finite, step() will leave
  /// everything as it is.
  void clip(const ClippingSettings& settings);
  void step();
  /// The factor on the loss whose gradients step() expects, f32 []: 1 but for float16.
  NDArray loss_scale() const;

  /// The StepState as it lies on the device, f64 [kStepNumbers].
  const NDArray& step_numbers() const { return state_; }
  /// What the last clip() and step() found and did; waits for the device.
  StepState step_state() const;
  /// The parameter that StepState::first_bad means.
  const std::string& name_of_gradient(double number) const;
  std::int64_t steps() const { return static_cast<std::int64_t>(step_state().steps); }
  void set_steps(std::int64_t steps);
  void set_loss_scale(double scale, double good_steps = 0);

  /// The state to save beside the step count, as named tensors ("first.<parameter>", ...): the live ones, so
  /// that loading replaces their numbers.
  std::vector<Parameter> state() const;

 protected:
  /// For each of `states` (at most two), keeps zeros shaped like all parameters.
  Optimizer(std::vector<ParameterGroup> groups, const std::vector<std::string>& states);
  /// Steps all of these.
  virtual void step_arrays(Device device, const std::vector<ParameterArrays>& arrays, const View& state) = 0;

 private:
  /// Those with a gradient, with their numbers counted through the groups. Throws unless all are on one
  /// device.
  std::vector<std::pair<std::size_t, const Parameter*>> with_gradients() const;
  void set(double StepState::*member, double value);

  /// The step of parameter number `index`, counted through the groups.
  ParameterArrays arrays_of(std::size_t index, double weight_decay, const Parameter& parameter);

  std::vector<ParameterGroup> groups_;
  std::vector<std::vector<Parameter>> states_;
  NDArray state_;                          // a StepState
  std::vector<const Parameter*> clipped_;  // whose gradients the last clip() measured
};

/// Stochastic gradient descent: u = momentum u + (g + decay w); w -= rate u, or with Nesterov's look ahead
/// w -= rate (g + decay w + momentum u) (Sutskever et al. 2013, section 2).
class Sgd : public Optimizer {
 public:
  const char* name() const override { return "sgd"; }
  explicit Sgd(std::vector<ParameterGroup> groups, double momentum = 0, bool nesterov = false);

 protected:
  void step_arrays(Device device, const std::vector<ParameterArrays>& arrays, const View& state) override;

 private:
  SgdSettings settings_;
};

/// How Adam decays weights: through the gradient (Kingma and Ba 2015), or apart from it, times the rate
/// (AdamW, Loshchilov and Hutter 2019, algorithm 2).
enum class AdamDecay { coupled, decoupled };

/// Adam and AdamW.
class Adam : public Optimizer {
 public:
  const char* name() const override { return settings_.decoupled ? "adamw" : "adam"; }
  explicit Adam(std::vector<ParameterGroup> groups, AdamDecay decay, double beta1 = 0.9, double beta2 = 0.999,
                double epsilon = 1e-8);

 protected:
  void step_arrays(Device device, const std::vector<ParameterArrays>& arrays, const View& state) override;

 private:
  AdamSettings settings_;
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
