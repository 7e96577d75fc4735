#include "needle/ops/attention.h"

#include <cmath>

#include "needle/counters.h"
#include "needle/ops/attention_watch.h"
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
  if (is_half(query.dtype())) {
    const DType wide = computing(query.dtype());
    return cast(attention_weights(cast(query, wide), cast(key, wide), options, bias), query.dtype());
  }
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
  const DType stored = query.dtype(), wide = computing(stored);
  const Tensor weights = attention_weights(cast(query, wide), cast(key, wide), options, bias);
  return cast(matmul(weights, serve_heads(cast(value, wide), query.size(1))), stored);
}

namespace {

/// The kernels of a call and what they keep: what attention() and self_attention() have in common. Arrays:
/// query, key, value, and the bias if there is one.
struct AttentionKernels {
  AttentionOptions options;
  NDArray log_sum;  // of each query's exponentials: the weights are made from it again

  NDArrays kept() const { return {log_sum, options.key_mask, options.allowed}; }

  /// [batch, heads, queries, value width], laid out [batch, queries, heads, value width], so that merging the
  /// heads is a view.
  NDArray forward(const NDArrays& inputs) {
    const NDArray& query = inputs[0];
    const std::int64_t batch = query.size(0), heads = query.size(1), queries = query.size(2);
    log_sum = NDArray::empty({batch, heads, queries}, computing(query.dtype()), query.device());
    const NDArray output =
        NDArray::empty({batch, queries, heads, inputs[2].size(3)}, query.dtype(), query.device())
            .transpose(1, 2);
    const NDArrays rows = with_unit_rows(inputs);
    query.device()->attention(
        settings(rows), {rows[0].view(), rows[1].view(), rows[2].view(), output.view(), log_sum.view()});
    return output;
  }

  /// Sets those of the gradients (of query, key, value and bias) that are there.
  void backward(const NDArray& g, const NDArrays& inputs, const NDArray& output,
                const NDArrays& gradients) const {
    const NDArrays rows = with_unit_rows(inputs);
    const NDArray incoming = unit_rows(g);
    output.device()->attention_gradient(
        settings(rows), {rows[0].view(), rows[1].view(), rows[2].view(), output.view(), log_sum.view()},
        {incoming.view(), gradients[0].optional_view(), gradients[1].optional_view(),
         gradients[2].optional_view(), gradients[3].optional_view()});
  }

  double operations(const NDArrays& inputs) const {
    const NDArray &query = inputs[0], &key = inputs[1], &value = inputs[2];
    const Shape full{query.size(0), query.size(1), query.size(2), key.size(2)};
    const double pairs = attention_pairs(settings(inputs), full, options.key_mask, options.allowed);
    return 2.0 * static_cast<double>(query.size(3) + value.size(3)) * pairs;
  }
  /// The scores again, and two products for each of the two of forward().
  static double gradient_operations(double forward) { return 2.5 * forward; }

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

/// Inputs: query, key, value, and the bias if there is one.
struct AttentionOp final : FusedOp {
  explicit AttentionOp(const AttentionOptions& options) : kernels{options, {}} {}
  AttentionKernels kernels;

  const char* name() const override { return "attention"; }
  Reads reads() const override { return {Reads::kAll, 1}; }
  NDArrays kept() const override { return kernels.kept(); }

  Tensors definition(const Tensors& inputs) const override {
    return {attention_definition(inputs[0], inputs[1], inputs[2], kernels.options,
                                 inputs.size() > 3 ? inputs[3] : Tensor())};
  }
  NDArrays compute(const NDArrays& inputs) override { return {kernels.forward(inputs)}; }

  void add_gradient(NDArrays g, const Saved& saved, GradientSums& into) override {
    NDArrays inputs, gradients(4);
    for (int i = 0; i < saved.input_count(); ++i) {
      const NDArray& x = inputs.emplace_back(saved.input_array(i));
      if (into.needs(i)) gradients[static_cast<std::size_t>(i)] = i < 3 ? buffer_like(x) : full_bias(inputs);
    }
    kernels.backward(g[0], inputs, saved.output_array(0), gradients);
    for (int i = 0; i < saved.input_count(); ++i) {
      const NDArray& gradient = gradients[static_cast<std::size_t>(i)];
      if (gradient.defined()) into.add(i, i < 3 ? gradient : sum_to(gradient, saved.input_shape(3)));
    }
  }

  double operations(std::span<const NDArray> inputs, std::span<const NDArray>) const override {
    return kernels.operations({inputs.begin(), inputs.end()});
  }
  double gradient_operations(double forward, const Needs&) const override {
    return AttentionKernels::gradient_operations(forward);
  }

 private:
  /// Time before heads where the projections lay them out so.
  static NDArray buffer_like(const NDArray& x) {
    if (x.is_compact()) return NDArray::empty(x.shape(), x.dtype(), x.device());
    return NDArray::empty({x.size(0), x.size(2), x.size(1), x.size(3)}, x.dtype(), x.device())
        .transpose(1, 2);
  }
  static NDArray full_bias(const NDArrays& inputs) {
    const NDArray& query = inputs[0];
    return NDArray::empty({query.size(0), query.size(1), query.size(2), inputs[1].size(2)}, inputs[3].dtype(),
                          query.device());
  }
};

/// Input: query, key and value side by side, as one projection makes them; the gradient is one array as well.
struct SelfAttentionOp final : FusedOp {
  SelfAttentionOp(std::int64_t query_heads, std::int64_t of_keys, const AttentionOptions& options)
      : heads(query_heads), key_heads(of_keys), kernels{options, {}} {}
  std::int64_t heads, key_heads;
  AttentionKernels kernels;

  const char* name() const override { return "attention"; }
  Reads reads() const override { return {Reads::kAll, 1}; }
  NDArrays kept() const override { return kernels.kept(); }

  Tensors definition(const Tensors& inputs) const override {
    const Tensors parts = split_heads(inputs[0], heads, key_heads);
    return {merge_heads(attention_definition(parts[0], parts[1], parts[2], kernels.options, {}))};
  }
  NDArrays compute(const NDArrays& inputs) override {
    const NDArray mixed = kernels.forward(parts_of(inputs[0])).transpose(1, 2);
    return {mixed.reshape({mixed.size(0), mixed.size(1), mixed.size(2) * mixed.size(3)})};
  }
  void add_gradient(NDArrays g, const Saved& saved, GradientSums& into) override {
    const NDArray& packed = saved.input_array(0);
    const NDArray gradient = NDArray::empty(packed.shape(), packed.dtype(), packed.device());
    NDArrays gradients = parts_of(gradient);
    gradients.emplace_back();
    kernels.backward(heads_of(g[0], heads), parts_of(packed), heads_of(saved.output_array(0), heads),
                     gradients);
    into.add(0, gradient);
  }

  double operations(std::span<const NDArray> inputs, std::span<const NDArray>) const override {
    return kernels.operations(parts_of(inputs[0]));
  }
  double gradient_operations(double forward, const Needs&) const override {
    return AttentionKernels::gradient_operations(forward);
  }

 private:
  /// [batch, time, heads width] as [batch, heads, time, width].
  static NDArray heads_of(const NDArray& x, std::int64_t heads) {
    return x.reshape({x.size(0), x.size(1), heads, x.size(2) / heads}).transpose(1, 2);
  }
  NDArrays parts_of(const NDArray& packed) const {
    const NDArray all = heads_of(packed, heads + 2 * key_heads);
    return {all.slice(1, 0, heads), all.slice(1, heads, heads + key_heads),
            all.slice(1, heads + key_heads, heads + 2 * key_heads)};
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

/// Checks the options of a call whose scores have the shape `full`.
void require_options(const AttentionOptions& options, const Shape& full, Device device) {
  require(options.window >= 0 && options.soft_cap >= 0,
          "attention: window and soft cap must not be negative, got ", options.window, " and ",
          options.soft_cap);
  for (const NDArray& mask : {options.key_mask, options.allowed, options.query_mask}) {
    if (!mask.defined()) continue;
    require(mask.dtype() == DType::boolean, "attention: masks must be bool, got ", name_of(mask.dtype()));
    require(mask.device() == device, "attention: a mask is on ", mask.device().name(), ", the query on ",
            device.name());
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
  if (options.strict) require_keys_for_all(options, full, device);
}

/// Offers what `weights_of` computes to the watch of this thread; it is no part of what is recorded or
/// observed.
template <class F>
void tell_watch(const F& weights_of) {
  const AttentionWatch* watch = AttentionWatch::current();
  if (!watch) return;
  const NoGrad off;
  const ObserverScope unobserved(nullptr);
  watch->tell(current_path(), [&] { return weights_of().array(); });
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
  const Shape full{query.size(0), query.size(1), query.size(2), key.size(2)};
  require_options(options, full, query.device());
  Tensors inputs{query, key, value};
  if (bias.defined()) {
    require_pairs_shape("the bias", bias.shape(), full);
    require(bias.dtype() == computing(query.dtype()), "attention: wants a bias of ",
            name_of(computing(query.dtype())), ", got ", name_of(bias.dtype()));
    inputs.push_back(bias);
  }
  tell_watch([&] { return attention_weights(query, key, options, bias); });
  return apply_op<AttentionOp>(inputs, options);
}

Tensors split_heads(const Tensor& packed, std::int64_t heads, std::int64_t key_heads) {
  const std::int64_t all = heads + 2 * key_heads;
  require(packed.rank() == 3 && heads > 0 && key_heads > 0 && packed.size(2) % all == 0,
          "split_heads: wants [batch, time, (heads + 2 key heads) width] with ", heads, " and ", key_heads,
          " heads, got ", packed.shape());
  const Tensor parts =
      transpose(reshape(packed, {packed.size(0), packed.size(1), all, packed.size(2) / all}), 1, 2);
  return split(parts, {heads, key_heads, key_heads}, 1);
}

Tensor merge_heads(const Tensor& x) {
  require(x.rank() == 4, "merge_heads: wants [batch, heads, time, width], got ", x.shape());
  return reshape(transpose(x, 1, 2), {x.size(0), x.size(2), x.size(1) * x.size(3)});
}

Tensor self_attention(const Tensor& packed, std::int64_t heads, std::int64_t key_heads,
                      const AttentionOptions& options) {
  const std::int64_t all = heads + 2 * key_heads;
  require(
      packed.rank() == 3 && heads > 0 && key_heads > 0 && packed.size(2) % all == 0 && heads % key_heads == 0,
      "self_attention: wants [batch, time, (heads + 2 key heads) width] with ", heads,
      " heads, a multiple of ", key_heads, " key heads, got ", packed.shape());
  require_options(options, {packed.size(0), heads, packed.size(1), packed.size(1)}, packed.device());
  tell_watch([&] {
    const Tensors parts = split_heads(packed, heads, key_heads);
    return attention_weights(parts[0], parts[1], options);
  });
  return apply_op<SelfAttentionOp>({packed}, heads, key_heads, options);
}

}  // namespace needle
