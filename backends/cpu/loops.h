// Loops over strided views: adjacent axes merged, the innermost one handed out as runs, in parallel.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "backends/view.h"

namespace needle {

/// Below this many elements a second thread costs more than it gains.
inline constexpr std::int64_t kParallelElements = 1 << 15;

/// Some views of one shape as nested loops; the axes that lie behind one another in all of them are merged.
template <std::size_t N>
struct StridedLoop {
  std::int64_t outer = 1, inner = 1;               ///< runs, and elements of a run
  std::array<std::int64_t, N> inner_strides = {};  ///< steps within a run

  explicit StridedLoop(const std::array<View, N>& views) {
    for (int axis = views[0].rank() - 1; axis >= 0; --axis) {
      const std::int64_t size = views[0].shape[axis];
      count_ *= size;
      if (size == 1) continue;
      bool merges = rank_ > 0;
      for (std::size_t v = 0; v < N && merges; ++v) {
        merges = views[v].strides[axis] == strides_[v][rank_ - 1] * sizes_[rank_ - 1];
      }
      if (merges) {
        sizes_[rank_ - 1] *= size;
        continue;
      }
      sizes_[rank_] = size;
      for (std::size_t v = 0; v < N; ++v) strides_[v][rank_] = views[v].strides[axis];
      ++rank_;
    }
    if (count_ == 0) outer = inner = 0;
    if (rank_ == 0 || count_ == 0) return;
    inner = sizes_[0];
    outer = count_ / inner;
    for (std::size_t v = 0; v < N; ++v) inner_strides[v] = strides_[v][0];
  }

  /// Whether a run steps through all views without gaps.
  bool contiguous() const {
    return inner == 1 ||
           std::all_of(inner_strides.begin(), inner_strides.end(), [](auto s) { return s == 1; });
  }

  /// Calls body(offsets of the views, count) for pieces of runs, on all threads.
  template <class Body>
  void run(const Body& body) const {
    if (count_ == 0) return;
    constexpr std::int64_t kPiece = 1 << 13;
    const std::int64_t pieces = (inner + kPiece - 1) / kPiece;
#pragma omp parallel for schedule(static) if (count_ >= kParallelElements)
    for (std::int64_t task = 0; task < outer * pieces; ++task) {
      const std::int64_t start = task % pieces * kPiece;
      std::array<std::int64_t, N> offsets;
      for (std::size_t v = 0; v < N; ++v) offsets[v] = start * inner_strides[v];
      std::int64_t rest = task / pieces;
      for (int axis = 1; axis < rank_; ++axis) {
        const std::int64_t index = rest % sizes_[axis];
        rest /= sizes_[axis];
        for (std::size_t v = 0; v < N; ++v) offsets[v] += index * strides_[v][axis];
      }
      body(offsets, std::min(kPiece, inner - start));
    }
  }

 private:
  int rank_ = 0;  // innermost first
  std::int64_t count_ = 1;
  std::array<std::int64_t, kMaxRank> sizes_ = {};
  std::array<std::array<std::int64_t, kMaxRank>, N> strides_ = {};
};

/// All axes but the last as rows of the last: the views that row kernels take.
inline std::int64_t rows_of(const View& x) {
  return x.rank() == 0 ? 1 : x.count() / std::max<std::int64_t>(x.shape.at(-1), 1);
}

}  // namespace needle
