// Causal convolution as shifted products, accumulated in place: nothing is unfolded into columns.
#include <algorithm>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/epilogue.h"
#include "backends/cpu/gemm.h"
#include "backends/cpu/loops.h"
#include "backends/cpu/parallel.h"
#include "backends/scratch.h"

namespace needle {

namespace {

/// Sizes of a call. Its work is cut into pieces of up to kRows times of one row of the batch, so that what a
/// piece reads and writes stays in the second cache over all taps.
struct Convolution {
  static constexpr std::int64_t kRows = 256;
  std::int64_t dilation, batch, time, in, out, kernel;
  Convolution(std::int64_t steps, const View& x, const View& weight)
      : dilation(steps),
        batch(x.shape[0]),
        time(x.shape[1]),
        in(x.shape[2]),
        out(weight.shape[2]),
        kernel(weight.shape[0]) {}

  std::int64_t pieces_of_row() const { return (time + kRows - 1) / kRows; }
  std::int64_t pieces() const { return batch * pieces_of_row(); }
  std::int64_t row_of(std::int64_t piece) const { return piece / pieces_of_row(); }
  std::int64_t start_of(std::int64_t piece) const { return piece % pieces_of_row() * kRows; }
  bool is_large() const { return batch * time * in * out * kernel >= 64 * 64 * 64; }
};

/// Numbers of times t in [start, end) for which t - shift is no time before 0 and t no time behind the end.
struct Overlap {
  std::int64_t start, count;
  Overlap(std::int64_t from, std::int64_t to, std::int64_t least)
      : start(std::max(from, least)), count(std::max<std::int64_t>(to - start, 0)) {}
};

}  // namespace

void CpuBackend::causal_convolution(std::int64_t dilation, Epilogue epilogue, const View& x,
                                    const View& weight, const View& bias, const View& residual, const View& y,
                                    const View& slope) {
  const Convolution c(dilation, x, weight);
  dispatch_computing("causal_convolution", y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Scratch<T> zeros(pool_, static_cast<std::size_t>(bias.data ? 0 : c.out));
    if (!bias.data) std::fill_n(zeros.data(), c.out, T(0));
    const epilogue::Target<T> target{y.as<T>(), slope.as<T>(), bias.data ? bias.as<T>() : zeros.data(), c.out,
                                     residual.as<T>()};
#pragma omp parallel for schedule(static) if (c.is_large() && c.pieces() > 1)
    for (std::int64_t piece = 0; piece < c.pieces(); ++piece) {
      const std::int64_t b = c.row_of(piece), start = c.start_of(piece),
                         end = std::min(start + c.kRows, c.time);
      const T* from = x.as<T>() + b * c.time * c.in;
      T* to = y.as<T>() + b * c.time * c.out;
      for (std::int64_t r = 0; r < c.kernel; ++r) {
        const Overlap t(start, end, r * c.dilation);
        if (t.count == 0) break;
        gemm<T>({from + (t.start - r * c.dilation) * c.in, t.count, c.in, c.in, 1},
                {weight.as<T>() + r * c.in * c.out, c.in, c.out, c.out, 1}, to + t.start * c.out, c.out,
                t.count, c.out, c.in, r > 0);
      }
      epilogue::finish(epilogue, target, b * c.time + start, b * c.time + end, 0, c.out);
    }
  });
}

void CpuBackend::causal_convolution_gradient(std::int64_t dilation, const View& x, const View& weight,
                                             const View& dy, const GradientPlace& dx_place,
                                             const GradientPlace& dweight_place) {
  const View &dx = dx_place.view, &dweight = dweight_place.view;
  if (dweight.data && !dweight_place.adds) fill(0, dweight);
  const Convolution c(dilation, x, weight);
  const std::int64_t size = c.kernel * c.in * c.out;
  const std::int64_t threads = c.is_large() ? std::min<std::int64_t>(available_threads(), c.pieces()) : 1;
  dispatch_computing("causal_convolution", dy.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    // Each thread but the first adds up a weight gradient of its own; they are added in order at the end.
    const Scratch<T> partial(pool_, static_cast<std::size_t>(dweight.data ? (threads - 1) * size : 0));
    std::fill_n(partial.data(), dweight.data ? (threads - 1) * size : 0, T(0));
#pragma omp parallel for schedule(static) num_threads(static_cast <int>(threads)) if (threads > 1)
    for (std::int64_t thread = 0; thread < threads; ++thread) {
      T* const dw = !dweight.data ? nullptr
                    : thread == 0 ? dweight.as<T>()
                                  : partial.data() + (thread - 1) * size;
      const auto [first, last] = part_of(c.pieces(), thread, threads, 1);
      for (std::int64_t piece = first; piece < last; ++piece) {
        const std::int64_t b = c.row_of(piece), start = c.start_of(piece),
                           end = std::min(start + c.kRows, c.time);
        const T *from = x.as<T>() + b * c.time * c.in, *slope = dy.as<T>() + b * c.time * c.out;
        for (std::int64_t r = 0; r < c.kernel; ++r) {
          const std::int64_t shift = r * c.dilation;
          const T* w = weight.as<T>() + r * c.in * c.out;
          if (dx.data) {  // dx[t] is what y[t + shift] read of it
            const Overlap t(start, std::min(end, c.time - shift), 0);
            T* to = dx.as<T>() + (b * c.time + start) * c.in;
            if (t.count > 0)
              gemm<T>({slope + (start + shift) * c.out, t.count, c.out, c.out, 1}, {w, c.out, c.in, 1, c.out},
                      to, c.in, t.count, c.in, c.out, dx_place.adds || r > 0);
          }
          const Overlap t(start, end, shift);
          if (dw && t.count > 0)
            gemm<T>({from + (t.start - shift) * c.in, c.in, t.count, 1, c.in},
                    {slope + t.start * c.out, t.count, c.out, c.out, 1}, dw + r * c.in * c.out, c.out, c.in,
                    c.out, t.count, true);
        }
      }
    }
    for (std::int64_t thread = 1; thread < threads && dweight.data; ++thread) {
      const T* more = partial.data() + (thread - 1) * size;
      T* const sum = dweight.as<T>();
#pragma omp parallel for simd schedule(static) if (size >= kParallelElements)
      for (std::int64_t i = 0; i < size; ++i) sum[i] += more[i];
    }
  });
}

}  // namespace needle
