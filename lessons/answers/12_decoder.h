// What is ignored must be left out twice: of the sum, and of what it is divided by.
#pragma once

#include <algorithm>

#include "needle/ops/ops.h"

namespace needle::answers {

/// Mean of -log p(label) over the labels that are not ignored, or 0: logits [..., classes], labels i64 [...].
inline Tensor padded_loss(const Tensor& logits, const NDArray& labels, std::int64_t ignored = -100) {
  const NDArray none = NDArray::scalar(static_cast<double>(ignored), DType::i64, labels.device());
  const NDArray counts = binary(NotEqual{}, labels, none);
  // An ignored label is no class; any class does, since its loss is not chosen below.
  const NDArray classes = select(counts, labels, NDArray::zeros(labels.shape(), DType::i64, labels.device()));
  const Tensor losses = -squeeze(gather(log_softmax(logits), -1, classes.unsqueeze(-1)), -1);
  const double count = sum(Tensor(counts.cast(DType::f64))).item();
  return sum(where(Tensor(counts), losses, constant_like(losses, 0))) / std::max(count, 1.0);
}

}  // namespace needle::answers
