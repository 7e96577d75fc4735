// What a training step does with its gradients: two passes over memory, one for their norm and one for the
// step, each over all parameters at once.
#include <cmath>
#include <numeric>
#include <vector>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/loops.h"
#include "backends/cpu/staging.h"
#include "backends/optimizer_steps.h"

namespace needle {

namespace {

/// A run of elements of one array, small enough to share out evenly.
struct Piece {
  std::size_t array;
  std::int64_t first, count;
  std::int64_t before;  ///< elements of all pieces before this one
};

/// Elements of a piece. A constant, so that sums over pieces do not depend on the number of threads.
constexpr std::int64_t kPiece = 1 << 14;

/// body(piece number, piece) for the pieces of all arrays; count_of(i) gives the elements of array i. Each
/// thread has as many elements as the others, not pieces: most arrays are small.
template <class CountOf, class Body>
void for_each_piece(std::size_t arrays, const CountOf& count_of, const Body& body) {
  std::vector<Piece> pieces;
  std::int64_t all = 0;
  for (std::size_t i = 0; i < arrays; ++i) {
    const std::int64_t count = count_of(i);
    for (std::int64_t first = 0; first < count; first += kPiece) {
      pieces.push_back({i, first, std::min(kPiece, count - first), all});
      all += pieces.back().count;
    }
  }
#pragma omp parallel if (all >= kParallelElements)
  {
    const auto [start, end] = part_of(all, omp_get_thread_num(), omp_get_num_threads(), 1);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].before >= start && pieces[i].before < end) body(i, pieces[i]);
    }
  }
}

/// body(TypeTag, range...) with the arrays' dtype, which is computed in here; a mixture is stepped type by
/// type.
template <class Body>
void dispatch_parameters(const char* op, std::span<const ParameterArrays> all, const Body& body) {
  for (std::size_t first = 0, last; first < all.size(); first = last) {
    const DType dtype = all[first].parameter.dtype;
    for (last = first + 1; last < all.size() && all[last].parameter.dtype == dtype;) ++last;
    dispatch_computing(op, dtype, [&](auto tag) { body(tag, all.subspan(first, last - first)); });
  }
}

/// Brings the copy in 16 bits up to date with a piece of its parameter.
template <class T>
void write_rounded(const ParameterArrays& arrays, const Piece& piece, const T* parameter) {
  if (arrays.rounded.data) write_run(arrays.rounded, piece.first, 1, piece.count, parameter);
}

}  // namespace

void CpuBackend::clip(const ClippingSettings& settings, std::span<const View> gradients, const View& state) {
  struct PieceSum {
    double sum = 0;
    std::size_t array = 0;
  };
  for (const View& x : gradients) dispatch_computing("clip", x.dtype, [](auto) {});
  std::vector<PieceSum> sums;
  for (const View& x : gradients)
    sums.resize(sums.size() + static_cast<std::size_t>((x.count() + kPiece - 1) / kPiece));
  for_each_piece(
      gradients.size(), [&](std::size_t i) { return gradients[i].count(); },
      [&](std::size_t number, const Piece& piece) {
        dispatch_computing("clip", gradients[piece.array].dtype, [&](auto tag) {
          using T = typename decltype(tag)::type;
          const T* const from = gradients[piece.array].as<T>() + piece.first;
          constexpr std::int64_t kLanes = 16;
          double lanes[kLanes] = {};
          std::int64_t i = 0;
          for (; i + kLanes <= piece.count; i += kLanes) {
#pragma omp simd
            for (std::int64_t lane = 0; lane < kLanes; ++lane) {
              const double element = static_cast<double>(from[i + lane]);
              lanes[lane] += element * element;
            }
          }
          for (; i < piece.count; ++i)
            lanes[0] += static_cast<double>(from[i]) * static_cast<double>(from[i]);
          sums[number] = {std::accumulate(lanes, lanes + kLanes, 0.0), piece.array};
        });
      });
  StepState& result = *state.as<StepState>();
  double total = 0;
  result.first_bad = -1;
  for (const PieceSum& piece : sums) {
    total += piece.sum;
    if (result.first_bad < 0 && !std::isfinite(piece.sum))
      result.first_bad = static_cast<double>(piece.array);
  }
  finish_clipping(settings, total, result);
}

void CpuBackend::adam(const AdamSettings& settings, std::span<const ParameterArrays> parameters,
                      const View& state) {
  StepState& step = *state.as<StepState>();
  begin_adam(settings, step);
  if (step.first_bad >= 0) return;
  dispatch_parameters("adam", parameters, [&](auto tag, std::span<const ParameterArrays> alike) {
    using T = typename decltype(tag)::type;
    const AdamNumbers<T> numbers(settings, step);
    for_each_piece(
        alike.size(), [&](std::size_t i) { return alike[i].parameter.count(); },
        [&](std::size_t, const Piece& piece) {
          const ParameterArrays& arrays = alike[piece.array];
          T* const w = arrays.parameter.as<T>() + piece.first;
          T *const m = arrays.first.as<T>() + piece.first, *const v = arrays.second.as<T>() + piece.first;
          const T* const g = arrays.gradient.as<T>() + piece.first;
          const DecayNumbers<T> decay(settings, step, arrays.weight_decay);
#pragma omp simd
          for (std::int64_t i = 0; i < piece.count; ++i) numbers.step(decay, g[i], w[i], m[i], v[i]);
          write_rounded(arrays, piece, w);
        });
  });
}

void CpuBackend::sgd(const SgdSettings& settings, std::span<const ParameterArrays> parameters,
                     const View& state) {
  StepState& step = *state.as<StepState>();
  if (step.first_bad >= 0) return;
  step.steps += 1;
  dispatch_parameters("sgd", parameters, [&](auto tag, std::span<const ParameterArrays> alike) {
    using T = typename decltype(tag)::type;
    const SgdNumbers<T> numbers(settings, step);
    for_each_piece(
        alike.size(), [&](std::size_t i) { return alike[i].parameter.count(); },
        [&](std::size_t, const Piece& piece) {
          const ParameterArrays& arrays = alike[piece.array];
          T* const w = arrays.parameter.as<T>() + piece.first;
          const T* const g = arrays.gradient.as<T>() + piece.first;
          const T decay = static_cast<T>(arrays.weight_decay);
          if (T* const u = arrays.first.as<T>()) {
#pragma omp simd
            for (std::int64_t i = 0; i < piece.count; ++i)
              numbers.step(decay, g[i], w[i], u[piece.first + i]);
          } else {
#pragma omp simd
            for (std::int64_t i = 0; i < piece.count; ++i) numbers.step(decay, g[i], w[i]);
          }
          write_rounded(arrays, piece, w);
        });
  });
}

}  // namespace needle
