// Positions: ids from masks, the sinusoidal table.
#pragma once

#include <span>
#include <vector>

#include "needle/ndarray.h"

namespace needle {

/// How a model knows where a token stands.
enum class Positions { learned, sinusoidal, rotary };

/// Position ids of `real` [batch, time]: each row's real tokens counted on from `start` of the row (none: 0),
/// padding repeats the last count, at least 0 (S18). i64 [batch, time].
NDArray position_ids(const NDArray& real, std::span<const std::int64_t> start = {});

/// Which keys stand less than `window` real tokens before a query, for the last `queries` positions of `real`
/// (bool [batch, keys]): bool [batch, 1, queries, keys]. None where counting places gives the same: when no
/// row has padding between real tokens.
NDArray window_pairs(const NDArray& real, std::int64_t queries, std::int64_t window);

/// The sinusoidal table [count, width]: sin(t / 10000^(2r/width)) in column 2r, the cosine in 2r + 1 (Vaswani
/// et al. 2017, section 3.5). An odd width is an Error.
NDArray sinusoidal_table(std::int64_t count, std::int64_t width, DType dtype = DType::f32,
                         Device device = cpu());

}  // namespace needle
