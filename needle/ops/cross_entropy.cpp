#include "needle/ops/cross_entropy.h"

#include "needle/ops/elementwise.h"
#include "needle/ops/index.h"
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

}  // namespace

std::int64_t valid_labels(const NDArray& labels, std::int64_t ignore_index) {
  std::int64_t valid = 0;
  for (const std::int64_t label : labels.to_vector<std::int64_t>()) valid += label != ignore_index;
  return valid;
}

Tensor cross_entropy_rows(const Tensor& logits, const NDArray& labels, const CrossEntropySettings& settings) {
  require(labels.dtype() == DType::i64, "cross_entropy: labels must be i64, got ", name_of(labels.dtype()));
  require(settings.label_smoothing >= 0 && settings.label_smoothing <= 1,
          "cross_entropy: label smoothing must be in [0, 1], got ", settings.label_smoothing);
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
  const double valid = options.divisor > 0
                           ? options.divisor
                           : static_cast<double>(valid_labels(labels, options.settings.ignore_index));
  return sum(cross_entropy_rows(logits, labels, options.settings)) * (valid > 0 ? 1 / valid : 0);
}

}  // namespace needle
