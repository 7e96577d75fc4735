// What `needle bench` measures: training steps of small models, and attention alone.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "needle/nn/module.h"
#include "needle/optim/optimizer.h"

namespace needle {

/// Where the time of a step went, in seconds.
struct StepTimes {
  double forward, backward, optimizer;
  double total() const { return forward + backward + optimizer; }
};

/// A piece of work that is measured step by step.
class Work {
 public:
  Work(std::string name, std::int64_t tokens, Device device)
      : name_(std::move(name)), tokens_(tokens), device_(device) {}
  virtual ~Work() = default;

  const std::string& name() const { return name_; }
  /// Positions that a step works on.
  std::int64_t tokens() const { return tokens_; }
  /// Numbers that are trained.
  std::int64_t parameter_count() const;
  /// Logits of a step: positions times vocabulary.
  virtual std::int64_t logit_count() const { return 0; }
  /// Forward and backward pass, and where there are parameters clipping (norm 1) and AdamW.
  StepTimes step();
  /// Seconds of a whole step, the mean of `steps` of them with one wait at their end: what a device that runs
  /// ahead makes of them.
  double seconds_of(int steps);
  /// Has the device record a step and replay it in seconds_of(). Throws where it cannot.
  void record();

 protected:
  /// What the forward pass ends with.
  virtual Tensor output() = 0;
  /// The gradient that the backward pass begins with; none for a loss.
  virtual NDArray seed() const { return {}; }
  /// To be called by constructors of models.
  void train(std::vector<Parameter> parameters);
  Device device() const { return device_; }

 private:
  void update();

  std::string name_;
  std::int64_t tokens_;
  Device device_;
  std::vector<Parameter> parameters_;
  std::optional<Adam> optimizer_;
  std::unique_ptr<Recording> recording_;
};

/// Throws unless make_work() knows the name. Computes nothing, so that the process can still fork.
void require_work(const std::string& name);
/// The positions of the work of that name. Throws on another name.
std::int64_t work_time(const std::string& name);
/// The name of the same work with other positions.
std::string work_of_time(const std::string& name, std::int64_t time);
/// The work of that name: decoders W1, W2, W3; rnn, lstm: one layer of width 256; convolution: six layers x +
/// gelu( causal convolution of 3); attention: 8 heads of width 64 in 2 rows; G124: GPT-2's smallest decoder, 8
/// rows, and G124-attention: its attention alone; each with "-T" for T positions.
/// Throws on another name.
std::unique_ptr<Work> make_work(const std::string& name, Device device);

}  // namespace needle
