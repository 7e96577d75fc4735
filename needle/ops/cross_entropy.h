// Cross entropy over classes, with labels that may be left out.
#pragma once

#include "needle/autograd.h"

namespace needle {

/// How cross_entropy() reduces the losses of the rows.
struct LossOptions {
  CrossEntropySettings settings;
  /// What the sum is divided by: by default the number of labels that count. Given where a batch comes in
  /// parts, so that the parts' losses add up to the mean over the whole batch. 1 gives the sum.
  double divisor = 0;
};

/// Mean over valid labels of -log softmax(logits)[label]; logits [..., classes], labels i64 [...]. Without
/// any valid label: 0, with gradient 0. A label outside [0, classes) that is not the ignore index is an
/// Error.
Tensor cross_entropy(const Tensor& logits, const NDArray& labels, const LossOptions& options = {});
/// cross_entropy(states table^T + bias, labels) without all logits at once: `chunk` rows at a time (0:
/// rows_of_chunk()), whose gradients are taken as soon as their loss is, while they are near. states [...,
/// width], table [classes, width] (a transposed view costs nothing), bias [classes] or undefined.
Tensor linear_cross_entropy(const Tensor& states, const Tensor& table, const Tensor& bias,
                            const NDArray& labels, const LossOptions& options = {}, std::int64_t chunk = 0);
inline constexpr std::int64_t kChunkBytes = 64 << 20;
/// Rows that make kChunkBytes of logits of `dtype`; on devices that run ahead, 16 times as many.
std::int64_t rows_of_chunk(std::int64_t classes, DType dtype, Device device);
/// The loss of each row by itself [...], 0 where the label is ignored.
Tensor cross_entropy_rows(const Tensor& logits, const NDArray& labels,
                          const CrossEntropySettings& settings = {});
/// How many labels count.
std::int64_t valid_labels(const NDArray& labels, std::int64_t ignore_index);

/// cross_entropy_rows in simple ops; logits [rows, classes], labels [rows].
Tensor cross_entropy_rows_definition(const Tensor& logits, const NDArray& labels,
                                     const CrossEntropySettings& settings);

}  // namespace needle
