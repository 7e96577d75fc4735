// Some views of one shape as nested loops with as few axes as possible.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "backends/view.h"

namespace needle {

/// The axes of N views of one shape, innermost first; those that lie behind one another in all views are
/// merged, and those of size 1 left out. There is at least one axis.
template <std::size_t N>
struct MergedAxes {
  int rank = 0;
  std::int64_t count;  ///< elements of a view
  std::int64_t sizes[kMaxRank] = {};
  std::int64_t strides[kMaxRank][N] = {};

  explicit MergedAxes(const std::array<View, N>& views) : count(views[0].count()) {
    for (int axis = views[0].rank() - 1; axis >= 0; --axis) {
      const std::int64_t size = views[0].shape[axis];
      if (size == 1) continue;
      bool merges = rank > 0;
      for (std::size_t v = 0; v < N && merges; ++v)
        merges = views[v].strides[axis] == strides[rank - 1][v] * sizes[rank - 1];
      if (merges) {
        sizes[rank - 1] *= size;
        continue;
      }
      sizes[rank] = size;
      for (std::size_t v = 0; v < N; ++v) strides[rank][v] = views[v].strides[axis];
      ++rank;
    }
    if (rank == 0) sizes[rank++] = 1;
  }
};

}  // namespace needle
