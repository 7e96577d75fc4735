#include "needle/inspect/cost.h"

#include <algorithm>

#include "needle/models/model.h"

namespace needle {

namespace {

double gates_of(ModelKind kind) { return kind == ModelKind::lstm ? 4 : kind == ModelKind::gru ? 3 : 1; }

/// The operations of every part, from sizes as real numbers.
class Formulas {
 public:
  Formulas(const ModelConfig& config, const PassSizes& sizes)
      : config_(config),
        batch_(static_cast<double>(sizes.batch)),
        layers_(static_cast<double>(config.layers)),
        width_(static_cast<double>(config.width)),
        key_width_(width_ / static_cast<double>(config.heads) * static_cast<double>(config.key_value_heads)) {
  }

  void transformer(const PassSizes& sizes) {
    const bool two = config_.kind == ModelKind::encoder_decoder;
    const double rows = batch_ * static_cast<double>(sizes.time),
                 source_rows = two ? batch_ * static_cast<double>(sizes.source) : 0;
    double maps = (rows + source_rows) * width_ * (2 * width_ + 2 * key_width_);
    if (two) maps += 2 * rows * width_ * width_ + 2 * source_rows * width_ * key_width_;
    const double inner = static_cast<double>(config_.ffn) * (config_.activation == Activation::gated ? 3 : 2);
    add("projections", 2 * layers_ * maps);
    const double pairs = query_key_pairs(sizes.time, 0, false, 0),
                 allowed =
                     query_key_pairs(sizes.time, 0, config_.causal || config_.window > 0, config_.window);
    if (two) add("encoder scores and mixing", of_pairs(query_key_pairs(sizes.source, 0, false, 0)));
    parts_.push_back({"scores and mixing", of_pairs(pairs), of_pairs(allowed)});
    if (two) add("cross scores and mixing", of_pairs(static_cast<double>(sizes.time * sizes.source)));
    add("feed-forward", 2 * layers_ * (rows + source_rows) * width_ * inner);
  }
  void recurrent(double rows) {
    const double product = 2 * layers_ * rows * width_ * width_ * gates_of(config_.kind);
    add("input products", product);
    add("recurrent products", product);
  }
  void convolution(double rows) {
    add("convolutions", 2 * layers_ * rows * static_cast<double>(config_.kernel) * width_ * width_);
  }
  void add(const std::string& part, double operations) { parts_.push_back({part, operations, operations}); }

  std::vector<PartCost> take() { return std::move(parts_); }

 private:
  /// Both products of that many pairs in each head of each layer.
  double of_pairs(double pairs) const { return 4 * batch_ * layers_ * width_ * pairs; }

  const ModelConfig& config_;
  double batch_, layers_, width_, key_width_;
  std::vector<PartCost> parts_;
};

}  // namespace

std::vector<PartCost> forward_cost(const ModelConfig& given, const PassSizes& sizes) {
  const ModelConfig config = given.resolved();
  const double rows = static_cast<double>(sizes.batch * sizes.time),
               width = static_cast<double>(config.width);
  Formulas formulas(config, sizes);
  if (config.kind == ModelKind::patches) {  // the first position is a class token
    formulas.add("input map",
                 2 * static_cast<double>(sizes.batch * (sizes.time - 1) * config.features) * width);
  }
  if (config.has_attention())
    formulas.transformer(sizes);
  else if (config.is_recurrent())
    formulas.recurrent(rows);
  else
    formulas.convolution(rows);
  formulas.add("head", 2 * rows * width * static_cast<double>(config.vocabulary));
  return formulas.take();
}

double operations_of(const std::vector<PartCost>& parts) {
  double total = 0;
  for (const PartCost& part : parts) total += part.masked;
  return total;
}

std::string part_of(const OpKey& op) {
  const auto within = [&](const char* name) { return op.path.find(name) != std::string::npos; };
  if (!is_product(op.op)) return "";
  if (op.op == "attention") {
    return std::string(within("cross")                  ? "cross "
                       : op.path.starts_with("encoder") ? "encoder "
                                                        : "") +
           "scores and mixing";
  }
  if (op.op == "recurrence") return "recurrent products";
  if (op.op == "causal_convolution") return "convolutions";
  if (within("recurrence")) return "input products";
  if (within("ffn")) return "feed-forward";
  if (within("attention") || within("cross")) return "projections";
  return op.path.empty() || within("head") ? "head" : "input map";
}

double query_key_pairs(std::int64_t queries, std::int64_t past, bool causal, std::int64_t window) {
  const auto real = [](std::int64_t number) { return static_cast<double>(number); };
  // Query t reads p = past + t + 1 keys when it is causal; those beyond the window are `cut` many fewer.
  const auto up_to = [&](std::int64_t number) { return real(number) * (real(number) + 1) / 2; };
  if (!causal) return real(queries) * real(past + queries);
  const double triangle = up_to(past + queries) - up_to(past);
  if (window == 0) return triangle;
  const auto cut = [&](std::int64_t keys) { return up_to(std::max<std::int64_t>(keys - window, 0)); };
  return triangle - (cut(past + queries) - cut(past));
}

double weights_entries(std::int64_t batch, std::int64_t heads, std::int64_t queries, std::int64_t keys) {
  return static_cast<double>(batch) * static_cast<double>(heads) * static_cast<double>(queries) *
         static_cast<double>(keys);
}

double state_bytes(const ModelConfig& given, const PassSizes& sizes, DType dtype) {
  const ModelConfig config = given.resolved();
  const double numbers = static_cast<double>(sizes.batch * config.width),
               layers = static_cast<double>(config.layers), number = static_cast<double>(size_of(dtype));
  if (config.is_recurrent()) return numbers * layers * (config.kind == ModelKind::lstm ? 2 : 1) * number;
  if (!config.has_attention()) return numbers * static_cast<double>(config.receptive_field() - 1) * number;
  const std::int64_t positions = sizes.time + (config.kind == ModelKind::encoder_decoder ? sizes.source : 0);
  return 2 * numbers * layers * static_cast<double>(positions) * number *
         static_cast<double>(config.key_value_heads) / static_cast<double>(config.heads);
}

SequenceInput input_of(const ModelConfig& config, const PassSizes& sizes, Device device) {
  SequenceInput input;
  if (config.kind == ModelKind::patches)
    input.features = NDArray::zeros({sizes.batch, sizes.time, config.features}, DType::f32, device);
  else
    input.ids = NDArray::zeros({sizes.batch, sizes.time}, DType::i64, device);
  if (config.kind == ModelKind::encoder_decoder)
    input.source_ids = NDArray::zeros({sizes.batch, sizes.source}, DType::i64, device);
  return input;
}

double CountedPass::forward(const std::string& part) const {
  double total = 0;
  for (const auto& [op, tally] : counter.tallies())
    total += op.phase == Phase::forward && part_of(op) == part ? tally.operations : 0;
  return total;
}

CountedPass count_pass(SequenceModel& model, const PassSizes& sizes, bool backward, Device device) {
  const SequenceInput input = input_of(model.config(), sizes, device);
  CountedPass pass;
  device->trim_memory();
  const std::size_t before = device->memory_stats().live;
  {
    const GradMode mode(backward);
    const ObserverScope watch(&pass.counter);
    const Tensor logits = model.forward(input);
    if (backward) logits.backward(NDArray::ones(logits.shape(), logits.dtype(), device));
  }
  device->synchronize();
  pass.peak_bytes = static_cast<double>(device->memory_stats().peak - before);
  model.clear_gradients();
  return pass;
}

CountedDecoding count_decoding(SequenceModel& model, const PassSizes& sizes, std::int64_t steps,
                               Device device) {
  const NoGrad off;
  Cache cache = model.empty_state(sizes.batch, sizes.time + steps);
  const Pass pass{false, nullptr, &cache};
  SequenceInput input = input_of(model.config(), sizes, device);
  model.forward(input, pass);
  OperationCounter counter;
  const ObserverScope watch(&counter);
  input.ids = NDArray::zeros({sizes.batch, 1}, DType::i64, device);
  for (std::int64_t step = 0; step < steps; ++step) model.forward(input, pass);
  double operations = 0;
  for (const auto& [op, tally] : counter.tallies())
    operations += part_of(op) == "scores and mixing" ? tally.operations : 0;
  const double a_pair = 4.0 * static_cast<double>(sizes.batch * model.config().layers * model.config().width);
  return {operations / a_pair, static_cast<double>(cache.bytes())};
}

namespace {

/// Each layer of a convolution goes 0, d, 2d, ... (k - 1) d positions on; fewest layers that go on at all.
std::optional<std::int64_t> path_of_convolution(const ModelConfig& config, std::int64_t distance) {
  constexpr std::int64_t kNever = -1;
  std::vector<std::int64_t> fewest(static_cast<std::size_t>(distance) + 1, kNever);
  fewest[0] = 0;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const std::vector<std::int64_t> before = fewest;
    for (std::int64_t r = 1; r < config.kernel; ++r) {
      for (std::int64_t to = r * config.dilation(layer); to <= distance; ++to) {
        const std::int64_t steps = before[static_cast<std::size_t>(to - r * config.dilation(layer))];
        std::int64_t& best = fewest[static_cast<std::size_t>(to)];
        if (steps != kNever && (best == kNever || steps + 1 < best)) best = steps + 1;
      }
    }
  }
  const std::int64_t steps = fewest.back();
  return steps == kNever ? std::nullopt : std::optional(steps);
}

}  // namespace

std::optional<std::int64_t> path_length(const ModelConfig& config, std::int64_t time) {
  require(time >= 1, "path_length: wants at least one position, got ", time);
  const std::int64_t distance = time - 1;
  if (config.is_recurrent() || distance == 0) return distance;
  if (!config.has_attention()) return path_of_convolution(config, distance);
  if (config.window == 0) return 1;
  const std::int64_t reach = config.window - 1;  // of one layer
  if (distance > config.layers * reach) return std::nullopt;
  return (distance + reach - 1) / reach;
}

ModelFacts facts_of(const ModelConfig& config, std::int64_t time, Device device) {
  Generator random(1);
  const std::unique_ptr<SequenceModel> model = make_model(config, random, device);
  const PassSizes sizes{1, time, time};
  const CountedPass pass = count_pass(*model, sizes, false, device);
  return {model->parameter_count(), pass.counter.forward_products() / static_cast<double>(time),
          path_length(model->config(), time), model->config().receptive_field()};
}

}  // namespace needle
