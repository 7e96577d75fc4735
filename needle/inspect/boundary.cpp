#include "needle/inspect/boundary.h"

#include <algorithm>
#include <cmath>

namespace needle {

namespace {

NDArray in_rows(const NDArray& row, std::int64_t rows) {
  if (!row.defined()) return {};
  std::vector<std::int64_t> sizes(row.shape().begin(), row.shape().end());
  sizes[0] = rows;
  return row.broadcast_to(Shape(sizes)).copy();
}

/// [outputs, inputs], the largest |d <direction, states[i]> / d embedded[j]|. Row i of a batch of the same
/// rows is asked about output i alone, so that one walk serves all.
std::vector<double> gradient_sizes(SequenceModel& model, const SequenceInput& input, std::int64_t length,
                                   Generator& random) {
  const SequenceInput rows{in_rows(input.ids, length),         in_rows(input.real, length),
                           in_rows(input.positions, length),   in_rows(input.source_ids, length),
                           in_rows(input.source_real, length), in_rows(input.features, length)};
  const GradMode on(true);
  const Tensor embedded(model.embed(rows, {}).array().copy(), true);
  const Tensor states = model.states(embedded, rows, {});
  require(states.rank() == 3 && states.size(1) == length && embedded.size(1) == length,
          "boundary: wants as many states as inputs, ", length, ", got ", states.shape());
  const NDArray position = NDArray::arange(length, DType::i64, states.device());
  const NDArray own = binary(Equal{}, position.unsqueeze(1), position.unsqueeze(0)).cast(states.dtype());
  const NDArray direction = NDArray::random({Distribution::Kind::normal, 0, 1}, {1, 1, states.size(2)},
                                            random, states.dtype(), states.device());
  const Tensor seed(binary(Multiply{}, own.unsqueeze(2), direction));
  const NDArray gradient = gradients(states, {embedded}, seed)[0].array();
  const std::vector<double> each = gradient.to_vector<double>();
  const std::size_t width = static_cast<std::size_t>(gradient.size(2));
  std::vector<double> sizes(each.size() / width);
  for (std::size_t i = 0; i < each.size(); ++i) {
    require(std::isfinite(each[i]), "boundary: a gradient is not finite");
    sizes[i / width] = std::max(sizes[i / width], std::abs(each[i]));
  }
  return sizes;
}

/// The input with everything from position `from` on taken from `other`.
NDArray mixed(const NDArray& row, const NDArray& other, std::int64_t from) {
  if (!row.defined()) return {};
  NDArray kept = binary(Less{}, NDArray::arange(row.size(1), DType::i64, row.device()),
                        NDArray::scalar(static_cast<double>(from), DType::i64, row.device()));
  kept = kept.unsqueeze(0);
  if (row.rank() == 3) kept = kept.unsqueeze(2);
  return select(kept, row, other);
}

/// Ids that differ from the given ones at every position.
NDArray other_ids(const NDArray& ids, std::int64_t vocabulary, Generator& random) {
  if (!ids.defined()) return {};
  require(vocabulary > 1, "boundary: a vocabulary of one token has nothing to change to");
  std::vector<std::int64_t> changed = ids.to_vector<std::int64_t>();
  for (std::int64_t& id : changed) id = (id + 1 + random.below(vocabulary - 1)) % vocabulary;
  return NDArray::from(changed, ids.shape(), ids.device());
}

NDArray other_features(const NDArray& features, Generator& random) {
  if (!features.defined()) return {};
  return NDArray::random({Distribution::Kind::normal, 0, 1}, features.shape(), random, features.dtype(),
                         features.device());
}

std::vector<std::int64_t> first_changes(SequenceModel& model, const SequenceInput& input, std::int64_t length,
                                        Generator& random) {
  const NoGrad off;
  const NDArray ids = other_ids(input.ids, model.vocabulary_size(), random);
  const NDArray features = other_features(input.features, random);
  const std::vector<double> before = model.forward(input).array().to_vector<double>();
  const std::size_t width = before.size() / static_cast<std::size_t>(length);
  std::vector<std::int64_t> first;
  for (std::int64_t from = 0; from < length; ++from) {
    SequenceInput changed = input;
    changed.ids = mixed(input.ids, ids, from);
    changed.features = mixed(input.features, features, from);
    const std::vector<double> after = model.forward(changed).array().to_vector<double>();
    const auto place = std::ranges::mismatch(before, after).in1 - before.begin();
    first.push_back(static_cast<std::int64_t>(static_cast<std::size_t>(place) / width));
  }
  return first;
}

}  // namespace

bool Boundary::reads(std::int64_t output, std::int64_t input) const {
  return gradient[static_cast<std::size_t>(output * length + input)] != 0;
}

std::optional<ReadingPair> Boundary::offence() const {
  for (std::int64_t output = 0; output < length; ++output) {
    for (std::int64_t input = output + 1; input < length; ++input)
      if (reads(output, input)) return ReadingPair{output, input};
  }
  for (std::int64_t input = 0; input < length; ++input) {
    const std::int64_t output = first_change[static_cast<std::size_t>(input)];
    if (output < input) return ReadingPair{output, input};
  }
  return std::nullopt;
}

std::optional<std::int64_t> Boundary::blind() const {
  for (std::int64_t output = 0; output < length; ++output) {
    bool any = false;
    for (std::int64_t input = 0; input <= output; ++input) any = any || reads(output, input);
    if (!any) return output;
  }
  return std::nullopt;
}

std::vector<std::int64_t> Boundary::distances() const {
  std::vector<std::int64_t> found;
  for (std::int64_t distance = 0; distance < length; ++distance)
    if (reads(length - 1, length - 1 - distance)) found.push_back(distance);
  return found;
}

std::int64_t Boundary::span() const {
  const std::vector<std::int64_t> found = distances();
  return found.empty() ? 0 : found.back() + 1;
}

std::vector<std::int64_t> Boundary::holes() const {
  std::vector<std::int64_t> result;
  for (std::int64_t distance = 0; distance < span(); ++distance)
    if (!reads(length - 1, length - 1 - distance)) result.push_back(distance);
  return result;
}

Boundary measure_boundary(SequenceModel& model, const SequenceInput& input, Generator& random) {
  const NDArray& row = input.ids.defined() ? input.ids : input.features;
  require(row.defined() && row.rank() >= 2 && row.size(0) == 1 && row.size(1) > 0,
          "boundary: wants one row of ids [1, time] or features [1, time, width]");
  const std::int64_t length = row.size(1);
  Boundary boundary;
  boundary.length = length;
  boundary.gradient = gradient_sizes(model, input, length, random);
  boundary.first_change = first_changes(model, input, length, random);
  return boundary;
}

SequenceInput random_input(const ModelConfig& config, std::int64_t length, Generator& random, Device device,
                           std::int64_t batch) {
  const auto ids = [&] {
    std::vector<std::int64_t> tokens;
    for (std::int64_t i = 0; i < batch * length; ++i) tokens.push_back(random.below(config.vocabulary));
    return NDArray::from(tokens, {batch, length}, device);
  };
  SequenceInput input{};
  if (config.kind == ModelKind::patches)
    input.features = NDArray::random({Distribution::Kind::normal, 0, 1}, {batch, length, config.features},
                                     random, DType::f32, device);
  else
    input.ids = ids();
  if (config.kind == ModelKind::encoder_decoder) input.source_ids = ids();
  return input;
}

bool claims_causality(const ModelConfig& config) {
  const bool decodes = config.kind == ModelKind::decoder || config.kind == ModelKind::encoder_decoder;
  return decodes ? config.causal : config.is_recurrent() || config.kind == ModelKind::convolution;
}

HeatMap boundary_picture(const Boundary& boundary, const std::string& title) {
  HeatMap map{title, "output", "input", {}, {}, {}, {"does not read", "reads"}};
  for (std::int64_t i = 0; i < boundary.length; ++i) {
    map.row_labels.push_back(std::to_string(i + 1));
    for (std::int64_t j = 0; j < boundary.length; ++j) {
      map.values.push_back(!boundary.reads(i, j) ? 0 : j > i ? 2 : 1);
    }
  }
  map.column_labels = map.row_labels;
  if (const auto pair = boundary.offence()) {
    map.kinds.push_back("reads the future");
    map.values[static_cast<std::size_t>(pair->output * boundary.length + pair->input)] = 2;
  }
  return map;
}

}  // namespace needle
