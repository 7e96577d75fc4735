// The names of the choices of a training run.
#pragma once

#include "needle/models/names_of_choices.h"
#include "needle/train/settings.h"

namespace needle {

inline ChoiceNames<DataSource> names_of(DataSource) {
  return {{"corpus", DataSource::corpus},
          {"lines", DataSource::lines},
          {"text", DataSource::text},
          {"copy", DataSource::copy},
          {"recall", DataSource::recall},
          {"brackets", DataSource::brackets},
          {"translation", DataSource::translation},
          {"shapes", DataSource::shapes}};
}
inline ChoiceNames<OptimizerKind> names_of(OptimizerKind) {
  return {{"sgd", OptimizerKind::sgd}, {"adam", OptimizerKind::adam}, {"adamw", OptimizerKind::adamw}};
}
inline ChoiceNames<Decay> names_of(Decay) {
  return {{"cosine", Decay::cosine}, {"linear", Decay::linear}, {"none", Decay::none}};
}
/// The precisions of products that train without scaling the loss.
inline ChoiceNames<DType> names_of(DType) {
  return {{"f32", DType::f32}, {"bf16", DType::bf16}, {"f16", DType::f16}};
}
inline ChoiceNames<Tokenizer::Kind> names_of(Tokenizer::Kind) {
  return {{"bytes", Tokenizer::Kind::bytes},
          {"characters", Tokenizer::Kind::characters},
          {"byte-pair", Tokenizer::Kind::byte_pair},
          {"ids", Tokenizer::Kind::ids}};
}

}  // namespace needle
