#include "needle/ops/attention.h"

#include <cmath>

#include "needle/counters.h"
#include "needle/ops/elementwise.h"
#include "needle/ops/matmul.h"
#include "needle/ops/reduce.h"
#include "needle/ops/shape.h"

namespace needle {

namespace {

std::int64_t offset_of(const AttentionOptions& options, std::int64_t queries, std::int64_t keys) {
  return options.offset.value_or(keys - queries);
}

double scale_of(const AttentionOptions& options, std::int64_t width) {
  return options.scale != 0 ? options.scale
                            : 1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(width, 1)));
}

/// [batch, key heads, keys, width] with each key head repeated for the heads that it serves.
Tensor serve_heads(const Tensor& x, std::int64_t heads) {
  const std::int64_t batch = x.size(0), key_heads = x.size(1), keys = x.size(2), width = x.size(3);
  if (key_heads == heads) return x;
  const Tensor repeated = broadcast_to(unsqueeze(x, 2), {batch, key_heads, heads / key_heads, keys, width});
  return reshape(repeated, {batch, heads, keys, width});
}

}  // namespace

NDArray allowed_pairs(const AttentionOptions& options, std::int64_t queries, std::int64_t keys,
                      Device device) {
  const double offset = static_cast<double>(offset_of(options, queries, keys));
  const NDArray position = NDArray::arange(queries, DType::i64, device, offset).unsqueeze(1);
  const NDArray key = NDArray::arange(keys, DType::i64, device).unsqueeze(0);
  NDArray allowed = NDArray::full({1, 1, queries, keys}, 1, DType::boolean, device);
  const auto restrict_to = [&](const NDArray& mask) {
    allowed = select(mask, allowed, NDArray::full({1, 1, 1, 1}, 0, DType::boolean, device));
  };
  if (options.causal || options.window > 0) restrict_to(binary(LessEqual{}, key, position));
  if (options.window > 0) {
    const double first = offset - static_cast<double>(options.window);
    restrict_to(binary(Greater{}, key, NDArray::arange(queries, DType::i64, device, first).unsqueeze(1)));
  }
  if (options.key_mask.defined()) restrict_to(options.key_mask.unsqueeze(1).unsqueeze(1));
  if (options.allowed.defined()) restrict_to(options.allowed);
  return allowed;
}

Tensor attention_weights(const Tensor& query, const Tensor& key, const AttentionOptions& options,
                         const Tensor& bias) {
  const std::int64_t heads = query.size(1), queries = query.size(2), keys = key.size(2);
  Tensor scores = matmul(query * scale_of(options, query.size(3)), transpose(serve_heads(key, heads)));
  if (options.soft_cap > 0) scores = tanh(scores / options.soft_cap) * options.soft_cap;
  if (bias.defined()) scores = scores + bias;
  const Tensor allowed(allowed_pairs(options, queries, keys, query.device()));
  const Tensor zero = constant_like(scores, 0), one = constant_like(scores, 1);
  // Masking by selection: a masked weight is exactly 0, and so is the gradient through it.
  const Tensor lowest = constant_like(scores, -std::numeric_limits<double>::infinity());
  const Tensor largest = keys == 0 ? zero : max(where(allowed, scores, lowest), {-1}, true).detach();
  const Tensor shift = where(equal(largest, lowest), zero, largest);
  const Tensor exponentials = where(allowed, exp(where(allowed, scores - shift, zero)), zero);
  const Tensor total = sum(exponentials, {-1}, true);
  return exponentials / where(equal(total, zero), one, total);
}

Tensor attention_definition(const Tensor& query, const Tensor& key, const Tensor& value,
                            const AttentionOptions& options, const Tensor& bias) {
  return matmul(attention_weights(query, key, options, bias), serve_heads(value, query.size(1)));
}

namespace {

/// Inputs: query, key, value, and the bias if there is one.
struct AttentionOp final : FusedOp {
  explicit AttentionOp(AttentionOptions how) : options(std::move(how)) {}
  AttentionOptions options;
  NDArray log_sum;  // of each query's exponentials: the weights are made from it again

  const char* name() const override { return "attention"; }
  Reads reads() const override { return {Reads::kAll, 1}; }

  Tensors definition(const Tensors& inputs) const override {
    return {attention_definition(inputs[0], inputs[1], inputs[2], options,
                                 inputs.size() > 3 ? inputs[3] : Tensor())};
  }

  NDArrays compute(const NDArrays& inputs) override {
    const NDArray& query = inputs[0];
    const std::int64_t batch = query.size(0), heads = query.size(1), queries = query.size(2);
    log_sum = NDArray::empty({batch, heads, queries}, query.dtype(), query.device());
    // Laid out [batch, time, head, width], so that merging the heads is a view.
    const NDArray output =
        NDArray::empty({batch, queries, heads, inputs[2].size(3)}, query.dtype(), query.device())
            .transpose(1, 2);
    const NDArrays rows = with_unit_rows(inputs);
    query.device()->attention(
        settings(rows), {rows[0].view(), rows[1].view(), rows[2].view(), output.view(), log_sum.view()});
    return {output};
  }

  void add_gradient(NDArrays g, const Saved& saved, GradientSums& into) override {
    NDArrays inputs;
    for (int i = 0; i < saved.input_count(); ++i) inputs.push_back(saved.input_array(i));
    const NDArrays rows = with_unit_rows(inputs);
    const NDArray& output = saved.output_array(0);
    const auto buffer = [&](int input) {
      if (!into.needs(input)) return NDArray();
      const NDArray& like = inputs[static_cast<std::size_t>(input)];
      // Time before heads where the projections lay them out so.
      if (like.is_compact()) return NDArray::empty(like.shape(), like.dtype(), like.device());
      return NDArray::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.dtype(),
                            like.device())
          .transpose(1, 2);
    };
    const NDArray dquery = buffer(0), dkey = buffer(1), dvalue = buffer(2);
    NDArray dbias;
    if (inputs.size() > 3 && into.needs(3)) {
      const NDArray& query = inputs[0];
      dbias = NDArray::empty({query.size(0), query.size(1), query.size(2), inputs[1].size(2)}, query.dtype(),
                             query.device());
    }
    const NDArray incoming = unit_rows(g[0]);
    output.device()->attention_gradient(
        settings(rows), {rows[0].view(), rows[1].view(), rows[2].view(), output.view(), log_sum.view()},
        {incoming.view(), dquery.optional_view(), dkey.optional_view(), dvalue.optional_view(),
         dbias.optional_view()});
    if (dquery.defined()) into.add(0, dquery);
    if (dkey.defined()) into.add(1, dkey);
    if (dvalue.defined()) into.add(2, dvalue);
    if (dbias.defined()) into.add(3, sum_to(dbias, inputs[3].shape()));
  }

  double operations(std::span<const NDArray> inputs, std::span<const NDArray>) const override {
    const NDArray &query = inputs[0], &key = inputs[1], &value = inputs[2];
    const Shape full{query.size(0), query.size(1), query.size(2), key.size(2)};
    const double pairs =
        attention_pairs(settings({query, key, value}), full, options.key_mask, options.allowed);
    return 2.0 * static_cast<double>(query.size(3) + value.size(3)) * pairs;
  }
  double gradient_operations(double forward, const Needs&) const override {
    return 2.5 * forward;  // the scores again, and two products for each of the two of compute()
  }

 private:
  static NDArray unit_rows(const NDArray& x) {
    return x.size(-1) == 1 || x.strides().at(-1) == 1 ? x : x.compact();
  }
  static NDArrays with_unit_rows(const NDArrays& inputs) {
    NDArrays result = inputs;
    for (std::size_t i = 0; i < 3; ++i) result[i] = unit_rows(inputs[i]);
    return result;
  }

  AttentionSettings settings(const NDArrays& inputs) const {
    const NDArray &query = inputs[0], &key = inputs[1];
    AttentionSettings result;
    result.scale = scale_of(options, query.size(3));
    result.soft_cap = options.soft_cap;
    result.causal = options.causal || options.window > 0;
    result.offset = offset_of(options, query.size(2), key.size(2));
    result.window = options.window;
    const Shape full{query.size(0), query.size(1), query.size(2), key.size(2)};
    result.key_mask = options.key_mask.optional_view();
    if (options.allowed.defined()) result.allowed = options.allowed.broadcast_to(full).view();
    if (inputs.size() > 3) result.bias = inputs[3].broadcast_to(full).view();
    return result;
  }
};

void require_pairs_shape(const char* what, const Shape& shape, const Shape& full) {
  bool fits = shape.rank() == 4 && shape[2] == full[2] && shape[3] == full[3];
  for (int axis = 0; fits && axis < 2; ++axis) fits = shape[axis] == 1 || shape[axis] == full[axis];
  require(fits, "attention: ", what, " must be [batch or 1, heads or 1, queries, keys] of ", full, ", got ",
          shape);
}

/// Each real query must have a key that it may read.
void require_keys_for_all(const AttentionOptions& options, const Shape& full, Device device) {
  const NDArray allowed = allowed_pairs(options, full[2], full[3], device).broadcast_to(full);
  const std::vector<double> most =
      full[3] == 0 ? std::vector<double>(static_cast<std::size_t>(full[0] * full[1] * full[2]))
                   : reduce(Max{}, allowed.cast(DType::f32), {-1}).to_vector<double>();
  const std::vector<bool> real = options.query_mask.defined()
                                     ? options.query_mask.to_vector<bool>()
                                     : std::vector<bool>(static_cast<std::size_t>(full[0] * full[2]), true);
  for (std::size_t i = 0; i < most.size(); ++i) {
    const std::size_t heads = static_cast<std::size_t>(full[1]), queries = static_cast<std::size_t>(full[2]);
    const std::size_t row = i / (heads * queries), query = i % queries;
    require(most[i] > 0 || !real[row * queries + query], "attention: in batch row ", row, ", query ", query,
            " has no key that it may read");
  }
}

}  // namespace

Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value, const AttentionOptions& options,
                 const Tensor& bias) {
  const bool four = query.rank() == 4 && key.rank() == 4 && value.rank() == 4;
  require(four && query.size(0) == key.size(0) && key.size(0) == value.size(0) &&
              query.size(3) == key.size(3) && key.size(1) == value.size(1) && key.size(2) == value.size(2) &&
              key.size(1) > 0 && query.size(1) % key.size(1) == 0,
          "attention: wants query [batch, heads, queries, width], key [batch, key heads, keys, width] and "
          "value [batch, key "
          "heads, keys, value width] with heads a multiple of key heads, got ",
          query.shape(), ", ", key.shape(), ", ", value.shape());
  require_same_dtype("attention", query.array(), key.array());
  require_same_dtype("attention", query.array(), value.array());
  require(options.window >= 0 && options.soft_cap >= 0,
          "attention: window and soft cap must not be negative, got ", options.window, " and ",
          options.soft_cap);
  const Shape full{query.size(0), query.size(1), query.size(2), key.size(2)};
  for (const NDArray& mask : {options.key_mask, options.allowed, options.query_mask}) {
    require(!mask.defined() || mask.dtype() == DType::boolean, "attention: masks must be bool, got ",
            mask.defined() ? name_of(mask.dtype()) : "");
  }
  if (options.query_mask.defined()) {
    require(options.query_mask.shape() == Shape{full[0], full[2]},
            "attention: the query mask must be [batch, queries] = [", full[0], ", ", full[2], "], got ",
            options.query_mask.shape());
  }
  if (options.key_mask.defined()) {
    require(options.key_mask.shape() == Shape{full[0], full[3]},
            "attention: the key mask must be [batch, keys] = [", full[0], ", ", full[3], "], got ",
            options.key_mask.shape());
  }
  if (options.allowed.defined()) require_pairs_shape("the mask", options.allowed.shape(), full);
  if (options.strict) require_keys_for_all(options, full, query.device());
  Tensors inputs{query, key, value};
  if (bias.defined()) {
    require_pairs_shape("the bias", bias.shape(), full);
    require_same_dtype("attention", query.array(), bias.array());
    inputs.push_back(bias);
  }
  return apply_op<AttentionOp>(inputs, options);
}

// --- rotary positions ----------------------------------------------------------------------------------

Tensor rotary_definition(const Tensor& x, const NDArray& positions, double base, RotaryPairs pairs) {
  const std::int64_t width = x.size(3), half = width / 2;
  std::vector<double> frequencies;
  for (std::int64_t r = 0; r < half; ++r) {
    frequencies.push_back(std::pow(base, -2.0 * static_cast<double>(r) / static_cast<double>(width)));
  }
  const NDArray angles = binary(Multiply{}, positions.cast(DType::f64).unsqueeze(1).unsqueeze(-1),
                                NDArray::from(frequencies, {half}, x.device()));
  const Tensor cosine(unary(Cos{}, angles).cast(x.dtype())), sine(unary(Sin{}, angles).cast(x.dtype()));
  const auto turned = [&](const Tensor& first, const Tensor& second) {
    return Tensors{first * cosine - second * sine, first * sine + second * cosine};
  };
  if (pairs == RotaryPairs::halves) {
    return concatenate(turned(slice(x, 3, 0, half), slice(x, 3, half, width)), 3);
  }
  const Tensors parts = turned(slice(x, 3, 0, width, 2), slice(x, 3, 1, width, 2));
  return reshape(stack(parts, 4), x.shape());
}

namespace {

struct RotaryOp final : FusedOp {
  RotaryOp(NDArray at, double of, RotaryPairs by, double toward)
      : positions(std::move(at)), base(of), pairs(by), direction(toward) {}
  NDArray positions;
  double base;
  RotaryPairs pairs;
  double direction;

  const char* name() const override { return "rotary"; }
  Reads reads() const override { return {}; }

  Tensors definition(const Tensors& inputs) const override {
    return {rotary_definition(inputs[0], positions, base, pairs)};
  }

  NDArrays compute(const NDArrays& inputs) override { return {turn(inputs[0], direction)}; }

  /// A rotation's transpose is the rotation back, whatever x is.
  Tensors gradient(const Tensors& g, const Saved&, const Needs&) override {
    return {apply_op<RotaryOp>({g[0]}, positions, base, pairs, -direction)};
  }
  void add_gradient(NDArrays g, const Saved&, GradientSums& into) override {
    into.add(0, turn(g[0], -direction));
  }

 private:
  NDArray turn(const NDArray& x, double toward) const {
    // Time before heads in memory, as attention reads it.
    const NDArray y =
        NDArray::empty({x.size(0), x.size(2), x.size(1), x.size(3)}, x.dtype(), x.device()).transpose(1, 2);
    y.device()->rotary(base, pairs == RotaryPairs::interleaved, toward, positions.view(), x.view(), y.view());
    return y;
  }
};

}  // namespace

Tensor rotary(const Tensor& x, const NDArray& positions, double base, RotaryPairs pairs) {
  require(x.rank() == 4 && x.size(3) % 2 == 0, "rotary: wants [batch, heads, time, an even width], got ",
          x.shape());
  require(positions.dtype() == DType::i64 && positions.shape() == Shape{x.size(0), x.size(2)},
          "rotary: wants i64 positions [", x.size(0), ", ", x.size(2), "], got ", name_of(positions.dtype()),
          positions.shape());
  return apply_op<RotaryOp>({x}, positions, base, pairs, 1.0);
}

}  // namespace needle
