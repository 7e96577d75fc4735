// An array in few words: what is shown of it in place of all its elements.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "needle/ndarray.h"

namespace needle {

/// {"count", "mean", "deviation", "least", "greatest", "zeros", "nans"}, of at most 64 elements all
/// ("numbers"), of more a histogram of 32 equal bins, and of matrices a "grid" of at most 48 x 64 of the
/// first one's elements. Mean, deviation and bounds are of the finite elements; JSON's null stands for a
/// number that is not.
nlohmann::json summary_of(const NDArray& x, std::int64_t cells = 48 * 64);

}  // namespace needle
