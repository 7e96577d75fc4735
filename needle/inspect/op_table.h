// One table of all differentiable ops with inputs to try them on: what `needle gradcheck` prints and what the
// tests run through.
#pragma once

#include <string>
#include <vector>

#include "needle/inspect/gradient_check.h"

namespace needle {

/// An op with some choice of its options.
struct OpCase {
  std::string name;  ///< "op" or "op, which options"
  std::vector<Shape> shapes;
  TensorFunction function;         ///< works in float32 as well
  TensorFunction definition = {};  ///< of a fused op: the same in simple ops
  double low = -1.5, high = 1.4;   ///< the range of the inputs
};

/// Every op, with its options; each case is small enough to be differentiated element by element.
std::vector<OpCase> op_table();

/// Inputs of a case: distinct numbers of its range in a fixed random order, none of them close to another, to
/// 0 or to another round number, so that no kink is near.
NDArrays inputs_of(const OpCase& op, Device device, DType dtype = DType::f64);

}  // namespace needle
