// The information boundary (S06): which outputs of a sequence model read which inputs, measured.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "needle/inspect/heat_map.h"
#include "needle/models/sequence_model.h"

namespace needle {

/// An output and an input position, counted from 0.
struct ReadingPair {
  std::int64_t output = 0, input = 0;
  bool operator==(const ReadingPair&) const = default;
};

/// What was measured over `length` positions, counted from 0.
struct Boundary {
  std::int64_t length = 0;
  /// [outputs, inputs]: the largest |d state / d embedded| along one random direction of the state.
  std::vector<double> gradient;
  /// For each position, the first output whose logits change when the input does from there on; `length`:
  /// none.
  std::vector<std::int64_t> first_change;

  /// Whether the output's gradient with respect to the input is not 0.
  bool reads(std::int64_t output, std::int64_t input) const;
  /// The first output that reads a later input, with the first such input; by gradient, else by change.
  std::optional<ReadingPair> offence() const;
  bool causal() const { return !offence(); }
  /// The first output that reads neither itself nor anything before it.
  std::optional<std::int64_t> blind() const;
  /// How far before the last position the positions stand that it reads, ascending; its own is 0.
  std::vector<std::int64_t> distances() const;
  /// Positions from the first that the last one reads up to itself, both counted (S29); 0 if it reads none.
  std::int64_t span() const;
  /// Distances within the span that the last position does not read (S29).
  std::vector<std::int64_t> holes() const;
};

/// Measures with `input` of one row, [1, time]: by gradients, all outputs in one walk back from a batch of
/// time rows, and by changing the input in time + 1 passes of one row. `random` draws the direction and the
/// changes. Throws where the model does.
Boundary measure_boundary(SequenceModel& model, const SequenceInput& input, Generator& random);

/// Rows of random tokens (or features), with a source of the same length where the model wants one.
SequenceInput random_input(const ModelConfig& config, std::int64_t length, Generator& random,
                           Device device = cpu(), std::int64_t batch = 1);

/// Whether models of that config promise that no position reads the future.
bool claims_causality(const ModelConfig& config);

/// Outputs down, inputs across; positions are labelled from 1.
HeatMap boundary_picture(const Boundary& boundary, const std::string& title);

}  // namespace needle
