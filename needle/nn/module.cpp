#include "needle/nn/module.h"

namespace needle {

void Parts::operator()(std::string_view name, Module& child) {
  const std::string outer = prefix_;
  prefix_ = full_name(name);
  child.path_ = prefix_;
  child.require_weights();
  modules_.push_back(&child);
  child.list(*this);
  prefix_ = outer;
}

std::string Parts::full_name(std::string_view name) const {
  return prefix_.empty() ? std::string(name) : prefix_ + "." + std::string(name);
}

void Parts::add(std::string_view name, Tensor& tensor, bool trained) {
  if (!tensor.defined()) return;
  const std::string full = full_name(name);
  for (Parameter& known : found_) {
    if (known.tensor.body() == tensor.body()) return known.aliases.push_back(full);
  }
  found_.push_back({full, tensor, trained, {}});
}

void Module::require_weights() const {
  require(!quantized_, "module: the weights of ", path_.empty() ? "the model" : path_,
          " are quantised: they can be neither saved, copied nor trained");
}

std::vector<Parameter> Module::state() {
  require_weights();
  Parts parts;
  list(parts);
  return parts.found();
}

std::vector<Parameter> Module::parameters() {
  std::vector<Parameter> result = state();
  std::erase_if(result, [](const Parameter& parameter) { return !parameter.trained; });
  return result;
}

std::int64_t Module::parameter_count() {
  std::int64_t count = 0;
  for (const Parameter& parameter : parameters()) count += parameter.tensor.array().count();
  return count;
}

void Module::clear_gradients() {
  for (Parameter& parameter : parameters()) parameter.tensor.clear_grad();
}

void copy_state(Module& from, Module& to) {
  const std::vector<Parameter> source = from.state();
  std::vector<Parameter> target = to.state();
  require(source.size() == target.size(), "copy_state: one module has ", source.size(),
          " tensors, the other ", target.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    require(source[i].name == target[i].name, "copy_state: ", source[i].name, " meets ", target[i].name);
    target[i].tensor.set_array(source[i].tensor.array().copy());
  }
}

void quantize_weights(Module& model) {
  model.require_weights();
  Parts parts;
  model.list(parts);
  std::vector<Module*> modules = parts.modules();
  modules.push_back(&model);
  for (Module* const module : modules) {
    module->quantize();
    module->quantized_ = true;
  }
}

}  // namespace needle
