// Modules: parts of a model that own parameters. What a module lists is what it has: names, saving, training
// and counting all come from its list().
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "needle/autograd.h"

namespace needle {

/// How weights begin.
enum class Initialisation {
  normal,  ///< normal with deviation 0.02, residual projections scaled by 1/sqrt(2 layers), biases 0 (Radford
           ///< et al. 2019)
  uniform  ///< PyTorch's module defaults: uniform within 1/sqrt(fan in), embeddings standard normal
};

/// What constructors of modules take.
struct Init {
  Generator& random;
  Device device = cpu();
  DType dtype = DType::f32;
  Initialisation scheme = Initialisation::normal;
  double residual_scale = 1;  ///< factor on projections that add to the residual stream (scheme normal)
};

/// A named tensor of a module: trained, or a buffer that is only saved.
struct Parameter {
  std::string name;  ///< dotted path, "blocks.3.ffn.up.weight"
  Tensor tensor;
  bool trained = true;
  std::vector<std::string> aliases;  ///< further names under which the same tensor is listed
};

class Module;

/// Collects what list() names: parameters, buffers and children, with their dotted paths.
class Parts {
 public:
  void operator()(std::string_view name, Tensor& parameter) { add(name, parameter, true); }
  void buffer(std::string_view name, Tensor& buffer) { add(name, buffer, false); }
  void operator()(std::string_view name, Module& child);
  template <class M>
  void operator()(std::string_view name, std::vector<M>& children) {
    for (std::size_t i = 0; i < children.size(); ++i)
      (*this)(std::string(name) + "." + std::to_string(i), children[i]);
  }
  const std::vector<Parameter>& found() const { return found_; }
  /// The children, at any depth.
  const std::vector<Module*>& modules() const { return modules_; }

 private:
  void add(std::string_view name, Tensor& tensor, bool trained);
  std::string full_name(std::string_view name) const;

  std::string prefix_;
  std::vector<Parameter> found_;
  std::vector<Module*> modules_;
};

/// Base of all modules. They move but do not copy: a second use of the same member ties weights, a copy never
/// does.
class Module {
 public:
  Module() = default;
  Module(Module&&) = default;
  Module& operator=(Module&&) = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  virtual ~Module() = default;

  /// Names every parameter, buffer and child, in a fixed order. Undefined tensors (an absent bias) are left
  /// out.
  virtual void list(Parts& parts) = 0;

  /// Parameters and buffers, each tensor once under its first name.
  std::vector<Parameter> state();
  /// The trained ones of state(), frozen ones included.
  std::vector<Parameter> parameters();
  /// How many numbers the parameters hold.
  std::int64_t parameter_count();
  /// Forgets all gradients.
  void clear_gradients();
  /// Makes weights of its own (not of its children) 8-bit ones where forward() can compute with such.
  virtual void quantize() {}
  /// Whether quantize_weights() took its weights: they can be listed no more, and change no more.
  bool is_quantized() const { return quantized_; }

  /// Dotted path within the model, known once the model has been listed.
  const std::string& path() const { return path_; }

 private:
  friend class Parts;
  friend void quantize_weights(Module& model);
  /// Throws if quantize_weights() took its weights.
  void require_weights() const;

  std::string path_;
  bool quantized_ = false;
};

/// Marks the module that runs: forward() opens with `const Scope scope(*this);`.
class Scope : public PathScope {
 public:
  explicit Scope(const Module& module) : PathScope(module.path()) {}
};

/// Copies the numbers of `from` into the parameters and buffers of the same names of `to`, which is built
/// alike.
void copy_state(Module& from, Module& to);

/// Has every part of a model quantize(): all linear maps then read weights of 8 bits
/// (needle/ops/quantized.h), a quarter of the memory and of the time of a token. The float weights are gone,
/// so that listing the parameters, as saving and training do, is an Error from then on.
void quantize_weights(Module& model);

}  // namespace needle
