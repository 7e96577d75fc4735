// The words for the choices of generation, on command lines and in JSON.
#pragma once

#include "needle/generate/generator.h"
#include "needle/models/names_of_choices.h"

namespace needle {

inline ChoiceNames<Overflow> names_of(Overflow) {
  return {{"stop", Overflow::stop}, {"recompute", Overflow::recompute}};
}
inline ChoiceNames<PaddingSide> names_of(PaddingSide) {
  return {{"left", PaddingSide::left}, {"right", PaddingSide::right}};
}
inline ChoiceNames<Ended> names_of(Ended) {
  return {{"length", Ended::length},
          {"end_token", Ended::end_token},
          {"stop_string", Ended::stop_string},
          {"context", Ended::context}};
}

}  // namespace needle
