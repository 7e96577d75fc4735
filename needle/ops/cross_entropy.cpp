#include "needle/ops/cross_entropy.h"

#include <algorithm>

#include "needle/ops/elementwise.h"
#include "needle/ops/index.h"
#include "needle/ops/matmul.h"
#include "needle/ops/reduce.h"
#include "needle/ops/shape.h"
#include "needle/ops/softmax.h"

namespace needle {

Tensor cross_entropy_rows_definition(const Tensor& logits, const NDArray& labels,
                                     const CrossEntropySettings& settings) {
  const std::int64_t classes = logits.size(-1);
  const NDArray ignored =
      binary(Equal{}, labels,
             NDArray::scalar(static_cast<double>(settings.ignore_index), DType::i64, labels.device()));
  const Tensor one(one_hot(labels, classes, logits.dtype())), surprise = -log_softmax_definition(logits),
                                                              zero = constant_like(logits, 0);
  // Chosen by selection, so that an infinite surprise elsewhere does not turn 0 times infinity into NaN.
  Tensor loss = sum(where(equal(one, constant_like(one, 1)), surprise, zero), {-1});
  const double smoothing = settings.label_smoothing;
  if (smoothing > 0)
    loss = loss * (1 - smoothing) + sum(surprise, {-1}) * (smoothing / static_cast<double>(classes));
  return where(Tensor(ignored), zero, loss);
}

namespace {

struct CrossEntropyOp final : FusedOp {
  CrossEntropyOp(NDArray targets, const CrossEntropySettings& how)
      : labels(std::move(targets)), settings(how) {}
  NDArray labels;
  CrossEntropySettings settings;

  const char* name() const override { return "cross_entropy"; }
  NDArrays kept() const override { return {labels}; }

  Tensors definition(const Tensors& inputs) const override {
    return {cross_entropy_rows_definition(inputs[0], labels, settings)};
  }

  NDArrays compute(const NDArrays& inputs) override {
    const NDArray logits = inputs[0].compact();
    const NDArray losses = NDArray::empty({logits.size(0)}, logits.dtype(), logits.device());
    logits.device()->cross_entropy(settings, logits.view(), labels.view(), losses.view());
    return {losses};
  }

  void add_gradient(NDArrays g, const Saved& saved, GradientSums& into) override {
    const bool in_place = saved.may_overwrite_input(0) && saved.input_array(0).is_compact();
    const NDArray logits = saved.input_array(0).compact();
    const NDArray dlogits =
        in_place ? logits : NDArray::empty(logits.shape(), logits.dtype(), logits.device());
    logits.device()->cross_entropy_gradient(settings, logits.view(), labels.view(), g[0].view(),
                                            dlogits.view());
    into.add(0, dlogits);
  }
};

/// Inputs: states [rows, width], table [classes, width], and the bias [classes] if there is one.
struct LinearCrossEntropyOp final : FusedOp {
  LinearCrossEntropyOp(NDArray targets, const CrossEntropySettings& how, double by, std::int64_t rows_at_once,
                       Needs wanted)
      : labels(std::move(targets)),
        settings(how),
        factor(by),
        chunk(rows_at_once),
        needs(std::move(wanted)) {}
  NDArray labels;
  CrossEntropySettings settings;
  double factor;  // on the sum of the rows' losses
  std::int64_t chunk;
  Needs needs;         // the inputs whose gradient is taken
  NDArrays gradients;  // theirs, for a gradient of 1

  const char* name() const override { return "linear_cross_entropy"; }
  NDArrays kept() const override {
    NDArrays all = gradients;
    all.push_back(labels);
    return all;
  }

  Tensors definition(const Tensors& inputs) const override {
    const Tensor product = matmul(cast(inputs[0], inputs[1].dtype()), transpose(inputs[1]));
    const Tensor logits = inputs.size() > 2 ? product + inputs[2] : product;
    return {sum(cross_entropy_rows_definition(logits, labels, settings)) * factor};
  }

  NDArrays compute(const NDArrays& inputs) override {
    const NDArray states = inputs[0].compact(), table = inputs[1].rounded(states.dtype());
    const Device device = states.device();
    const DType dtype = inputs[1].dtype();
    const std::int64_t rows = states.size(0);
    const NDArray losses = NDArray::empty({rows}, dtype, device),
                  slopes = NDArray::full({rows}, taken_factor(states.dtype()), dtype, device);
    const bool any = std::find(needs.begin(), needs.end(), true) != needs.end();
    for (std::size_t i = 0; i < inputs.size(); ++i)
      gradients.push_back(needs[i] ? sum_like(inputs[i], rows > 0) : NDArray());
    for (std::int64_t start = 0; start < rows; start += chunk) {
      const std::int64_t end = std::min(rows, start + chunk);
      const auto part = [&](const NDArray& x) { return x.slice(0, start, end); };
      const NDArray x = part(states);
      NDArray logits = NDArray::empty({end - start, table.size(0)}, dtype, device);
      matmul_into(x, table.transpose(), logits, false);
      if (inputs.size() > 2) add_into(inputs[2].broadcast_to(logits.shape()), logits);
      CrossEntropySettings here = settings;
      here.first_row = start;
      device->cross_entropy(here, logits.view(), part(labels).view(), part(losses).view());
      if (!any) continue;
      device->cross_entropy_gradient(settings, logits.view(), part(labels).view(), part(slopes).view(),
                                     logits.view());
      const NDArray dlogits = logits.cast(x.dtype());
      if (needs[0]) {
        NDArray dstates = part(gradients[0]);
        matmul_into(dlogits, table, dstates, false);
      }
      if (needs[1] && gradients[1].is_compact()) {
        matmul_into(dlogits.transpose(), x, gradients[1], start > 0);
      } else if (needs[1]) {
        NDArray as_it_lies = gradients[1].transpose();
        matmul_into(x.transpose(), dlogits, as_it_lies, start > 0);
      }
      if (inputs.size() > 2 && needs[2]) add_into(reduce(Sum{}, logits, {0}), gradients[2]);
    }
    return {binary(Multiply{}, reduce(Sum{}, losses), NDArray::scalar(factor, losses.dtype(), device))};
  }

  void add_gradient(NDArrays g, const Saved& saved, GradientSums& into) override {
    const double missing = factor / taken_factor(saved.input_dtype(0));
    // Where the device runs ahead, nobody waits to see whether there is anything to multiply by.
    const bool scales = g[0].device()->runs_ahead() || missing != 1 || g[0].item() != 1;
    const NDArray slope = missing != 1 ? unary(MultiplyScalar{missing}, g[0]) : g[0];
    for (int i = 0; i < saved.input_count(); ++i) {
      NDArray& gradient = gradients[static_cast<std::size_t>(i)];
      if (!into.needs(i)) continue;
      NDArray mine = saved.is_last_walk() ? std::move(gradient) : gradient.copy();
      if (scales) mine = binary(Multiply{}, mine.cast(slope.dtype()), slope).cast(mine.dtype());
      into.add(i, std::move(mine));
    }
  }

  /// Those of the gradients, too: they are taken in compute().
  double operations(std::span<const NDArray> inputs, std::span<const NDArray>) const override {
    return 2.0 * static_cast<double>(inputs[0].count() * inputs[1].size(0)) * (1 + needs[0] + needs[1]);
  }
  double gradient_operations(double, const Needs&) const override { return 0; }

 private:
  /// What of the factor is in the gradients that compute() takes. In float16 it would make the small ones
  /// vanish, and is left to the incoming gradient, which carries the loss scale.
  double taken_factor(DType operands) const { return operands == DType::f16 ? 1 : factor; }
  /// Room for an input's gradient, which lies as the input does: a transposed table's as the table itself.
  /// Products of the first chunk overwrite matrices; what is added to begins at 0.
  static NDArray sum_like(const NDArray& input, bool overwritten) {
    const bool turned = input.rank() == 2 && input.strides()[0] < input.strides()[1];
    const Shape shape = turned ? input.transpose().shape() : input.shape();
    const NDArray sum = overwritten && input.rank() == 2
                            ? NDArray::empty(shape, input.dtype(), input.device())
                            : NDArray::zeros(shape, input.dtype(), input.device());
    return turned ? sum.transpose() : sum;
  }
};

void require_settings(const Tensor& x, const NDArray& labels, const CrossEntropySettings& settings) {
  require_same_device("cross_entropy", x.array(), labels);
  require(labels.dtype() == DType::i64, "cross_entropy: labels must be i64, got ", name_of(labels.dtype()));
  require(settings.label_smoothing >= 0 && settings.label_smoothing <= 1,
          "cross_entropy: label smoothing must be in [0, 1], got ", settings.label_smoothing);
}

/// What the sum of the losses is multiplied by.
double factor_of(const NDArray& labels, const LossOptions& options) {
  const double valid = options.divisor > 0
                           ? options.divisor
                           : static_cast<double>(valid_labels(labels, options.settings.ignore_index));
  return valid > 0 ? 1 / valid : 0;
}

}  // namespace

std::int64_t valid_labels(const NDArray& labels, std::int64_t ignore_index) {
  std::int64_t valid = 0;
  for (const std::int64_t label : labels.to_vector<std::int64_t>()) valid += label != ignore_index;
  return valid;
}

Tensor cross_entropy_rows(const Tensor& logits, const NDArray& labels, const CrossEntropySettings& settings) {
  require_settings(logits, labels, settings);
  Shape rows = logits.shape();
  require(rows.rank() > 0, "cross_entropy: logits need a last axis of classes");
  rows.erase(rows.rank() - 1);
  require(rows == labels.shape(), "cross_entropy: logits ", logits.shape(), " want labels of shape ", rows,
          ", got ", labels.shape());
  const Tensor losses = apply_op<CrossEntropyOp>({reshape(logits, {labels.count(), logits.size(-1)})},
                                                 labels.reshape({labels.count()}).compact(), settings);
  return reshape(losses, rows);
}

Tensor cross_entropy(const Tensor& logits, const NDArray& labels, const LossOptions& options) {
  return sum(cross_entropy_rows(logits, labels, options.settings)) * factor_of(labels, options);
}

std::int64_t rows_of_chunk(std::int64_t classes, DType dtype, Device device) {
  const std::int64_t row_bytes = classes * static_cast<std::int64_t>(size_of(dtype));
  // A large device wants large products.
  const std::int64_t bytes = device->runs_ahead() ? 16 * kChunkBytes : kChunkBytes;
  return std::max<std::int64_t>(1, bytes / std::max<std::int64_t>(1, row_bytes));
}

Tensor linear_cross_entropy(const Tensor& states, const Tensor& table, const Tensor& bias,
                            const NDArray& labels, const LossOptions& options, std::int64_t chunk) {
  require_settings(states, labels, options.settings);
  Shape rows = states.shape();
  require(rows.rank() > 0 && table.rank() == 2 && states.size(-1) == table.size(1) &&
              (!bias.defined() || bias.shape() == Shape{table.size(0)}),
          "linear_cross_entropy: wants states [..., width], table [classes, width] and bias [classes], got ",
          states.shape(), ", ", table.shape(), " and ", bias.defined() ? bias.shape() : Shape{});
  rows.erase(rows.rank() - 1);
  require(rows == labels.shape(), "linear_cross_entropy: states ", states.shape(), " want labels of shape ",
          rows, ", got ", labels.shape());
  require(chunk >= 0, "linear_cross_entropy: a chunk must not be negative, got ", chunk);
  if (chunk == 0) {
    chunk = rows_of_chunk(table.size(0), table.dtype(), table.device());
  }
  const Tensor operand = as_operand("linear_cross_entropy", states, table);
  Tensors inputs{reshape(operand, {labels.count(), states.size(-1)}), table};
  if (bias.defined()) {
    require_same_dtype("linear_cross_entropy", table.array(), bias.array());
    inputs.push_back(bias);
  }
  Needs needs;
  for (const Tensor& input : inputs) needs.push_back(grad_enabled() && input.requires_grad());
  return apply_op<LinearCrossEntropyOp>(inputs, labels.reshape({labels.count()}).compact(), options.settings,
                                        factor_of(labels, options), chunk, needs);
}

}  // namespace needle
