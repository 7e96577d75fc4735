// The names of choices in checkpoints and on the command line: each written once.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "needle/models/model_config.h"

namespace needle {

/// The values of one kind of choice, each with its name.
template <class Choice>
using ChoiceNames = std::vector<std::pair<std::string, Choice>>;

/// All values of a kind of choice with their names.
inline ChoiceNames<Activation> names_of(Activation) {
  return {{"relu", Activation::relu},
          {"gelu", Activation::gelu},
          {"gelu-tanh", Activation::gelu_tanh},
          {"gated", Activation::gated}};
}
inline ChoiceNames<ModelKind> names_of(ModelKind) {
  return {{"decoder", ModelKind::decoder},
          {"encoder", ModelKind::encoder},
          {"encoder-decoder", ModelKind::encoder_decoder},
          {"rnn", ModelKind::rnn},
          {"gru", ModelKind::gru},
          {"lstm", ModelKind::lstm},
          {"convolution", ModelKind::convolution},
          {"patches", ModelKind::patches}};
}
inline ChoiceNames<NormKind> names_of(NormKind) {
  return {{"layer", NormKind::layer}, {"rms", NormKind::rms}};
}
inline ChoiceNames<NormOrder> names_of(NormOrder) {
  return {{"pre", NormOrder::pre}, {"post", NormOrder::post}};
}
inline ChoiceNames<Positions> names_of(Positions) {
  return {
      {"learned", Positions::learned}, {"sinusoidal", Positions::sinusoidal}, {"rotary", Positions::rotary}};
}
inline ChoiceNames<Initialisation> names_of(Initialisation) {
  return {{"normal", Initialisation::normal}, {"uniform", Initialisation::uniform}};
}

/// The name of a value.
template <class Choice>
std::string name_of_choice(Choice value) {
  for (const auto& [name, choice] : names_of(Choice{})) {
    if (choice == value) return name;
  }
  fail("a choice without a name");
}

/// The choice of that name; another name is an Error that lists the possible ones.
template <class Choice>
Choice choice_of_name(const std::string& wanted) {
  std::string all;
  for (const auto& [name, choice] : names_of(Choice{})) {
    if (name == wanted) return choice;
    all += (all.empty() ? "" : ", ") + name;
  }
  fail("'", wanted, "' is not one of ", all);
}

}  // namespace needle
