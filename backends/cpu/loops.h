// Loops over strided views: adjacent axes merged, the innermost one handed out as runs, in parallel.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "backends/cpu/parallel.h"
#include "backends/merged_axes.h"

namespace needle {

/// Below this many elements a second thread costs more than it gains.
inline constexpr std::int64_t kParallelElements = 1 << 15;

/// Some views of one shape as nested loops; the axes that lie behind one another in all of them are merged,
/// and the innermost is cut into runs of at most kLongest elements. Where a view steps through the innermost
/// axis with gaps, as in a transposition, runs are short and the next axis is walked before the next run, so
/// that the cache lines a run has touched are used up.
template <std::size_t N>
class StridedLoop {
 public:
  static constexpr std::int64_t kLongest =
      2048;  // so that a run of several operands stays in the first cache
  using Offsets = std::array<std::int64_t, N>;

  explicit StridedLoop(const std::array<View, N>& views) : count_(views[0].count()) {
    const MergedAxes<N> axes(views);
    rank_ = axes.rank;
    for (int axis = 0; axis < rank_; ++axis) {
      sizes_[axis] = axes.sizes[axis];
      std::copy_n(axes.strides[axis], N, strides_[axis].begin());
    }
    // Axis 0 now comes to count the runs of the innermost axis.
    inner_ = sizes_[0];
    run_strides_ = strides_[0];
    const bool gaps =
        std::any_of(run_strides_.begin(), run_strides_.end(), [](auto s) { return s != 0 && s != 1; });
    longest_ = gaps ? kShort : kLongest;
    sizes_[0] = (inner_ + longest_ - 1) / longest_;
    for (std::int64_t& stride : strides_[0]) stride *= longest_;
    if (gaps && rank_ > 1) {
      run_axis_ = 1;
      std::swap(sizes_[0], sizes_[1]);
      std::swap(strides_[0], strides_[1]);
    }
  }

  /// Steps from element to element of a run, in each view.
  const Offsets& run_strides() const { return run_strides_; }

  /// Calls body(offsets of the views, count) for all runs, shared out to all threads.
  template <class Body>
  void run(const Body& body) const {
    if (count_ == 0) return;
    const std::int64_t runs = count_ / inner_ * sizes_[run_axis_];
#pragma omp parallel if (count_ >= kParallelElements)
    {
      const auto [first, last] = part_of(runs, omp_get_thread_num(), omp_get_num_threads(), 1);
      Offsets offsets = {};
      std::array<std::int64_t, kMaxRank> index = {};
      std::int64_t rest = first;
      for (int axis = 0; axis < rank_; ++axis) {
        index[axis] = rest % sizes_[axis];
        rest /= sizes_[axis];
        advance(offsets, axis, index[axis]);
      }
      for (std::int64_t number = first; number < last; ++number) {
        body(offsets, std::min(longest_, inner_ - index[run_axis_] * longest_));
        for (int axis = 0; axis < rank_; ++axis) {
          advance(offsets, axis, 1);
          if (++index[axis] < sizes_[axis]) break;
          advance(offsets, axis, -sizes_[axis]);
          index[axis] = 0;
        }
      }
    }
  }

 private:
  static constexpr std::int64_t kShort = 64;

  void advance(Offsets& offsets, int axis, std::int64_t steps) const {
    for (std::size_t v = 0; v < N; ++v) offsets[v] += steps * strides_[axis][v];
  }

  int rank_ = 0, run_axis_ = 0;
  std::int64_t count_, inner_ = 0, longest_ = kLongest;
  Offsets run_strides_ = {};
  std::array<std::int64_t, kMaxRank> sizes_ = {};
  std::array<Offsets, kMaxRank> strides_ = {};
};

}  // namespace needle
