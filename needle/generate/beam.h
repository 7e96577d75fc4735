// Beam search: the likeliest continuations, not drawn ones.
#pragma once

#include "needle/generate/generator.h"

namespace needle {

/// How far and how wide to look.
struct BeamSettings {
  std::int64_t beams = 4;
  std::int64_t new_tokens = 64;    ///< at most
  double length_penalty = 0.6;     ///< 0: none; larger ones prefer longer answers
  std::vector<std::int64_t> ends;  ///< ids that end an answer
  std::int64_t vocabulary = 0;     ///< ids from here on have no text and are left out; 0: none
  DecodingSettings decoding;
};

/// One answer.
struct Beam {
  TokenRow ids;                ///< new ones, the end token included
  double log_probability = 0;  ///< of all its new tokens together
  double score = 0;            ///< log_probability / ((5 + length) / 6)^penalty (Wu et al. 2016, section 7)
  Ended ended = Ended::length;
};

/// Continues a prompt by the answers of the highest scores that a search of that width finds, best first, at
/// most `beams` of them. Equal ones come in the order of their ids. `source` is what an encoder-decoder
/// translates.
std::vector<Beam> beam_search(SequenceModel& model, const TokenRow& prompt, const BeamSettings& settings,
                              Device device = cpu(), const TokenRow& source = {});

}  // namespace needle
