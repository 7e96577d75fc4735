// Linear maps by quantised weights: with few rows, as in decoding, the weight is read once and converted in
// registers; with many it is converted a block at a time, for products of floats.
#include <algorithm>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/epilogue.h"
#include "backends/cpu/few_rows.h"
#include "backends/cpu/gemm.h"
#include "backends/cpu/loops.h"
#include "backends/scratch.h"

namespace needle {

namespace {

/// Up to so many rows, converting the weight in registers is faster.
constexpr std::int64_t kFewRows = 16;
/// Columns of the weight whose floats fit the second cache.
constexpr std::int64_t kBlock = 128;

}  // namespace

void CpuBackend::linear_int8(Epilogue epilogue, const View& x, const View& weight, const View& scale,
                             const View& bias, const View& residual, const View& y) {
  const std::int64_t rows = x.shape[0], inner = x.shape[1], width = weight.shape[0];
  if (rows == 0 || width == 0) return;
  const Scratch<float> zeros(pool_, static_cast<std::size_t>(bias.data ? 0 : width));
  if (!bias.data) std::fill_n(zeros.data(), width, 0.0f);
  const epilogue::Target<float> target{y.as<float>(), nullptr, bias.data ? bias.as<float>() : zeros.data(),
                                       width, residual.as<float>()};
  const auto* const numbers = weight.as<std::int8_t>();
  const float *const scales = scale.as<float>(), *const from = x.as<float>();
  const bool few = rows <= kFewRows || inner == 0;
  const bool shared = static_cast<double>(weight.count()) * static_cast<double>(rows) >= kParallelElements;
  const int parts = shared ? available_threads() : 1;
  const Scratch<float> ordered(pool_, static_cast<std::size_t>(few ? rows * inner : 0)),
      floats(pool_, static_cast<std::size_t>(few ? 0 : parts * kBlock * inner));
  for (std::int64_t row = 0; few && row < rows; ++row)
    few_rows::order_by_parts<std::int8_t>(from + row * inner, inner, ordered.data() + row * inner);
#pragma omp parallel for schedule(static) num_threads(parts) if (parts > 1)
  for (int part = 0; part < parts; ++part) {
    const auto [start, end] = part_of(width, part, parts, 16);
    if (few) {
      few_rows::dots(few_rows::Table<float>{ordered.data(), inner}, rows,
                     few_rows::Table<std::int8_t>{numbers, inner}, inner, start, end,
                     [&](std::int64_t row, std::int64_t column, float sum) {
                       target.y[row * width + column] = sum * scales[column];
                     });
      epilogue::finish(epilogue, target, 0, rows, start, end);
      continue;
    }
    float* const block = floats.data() + part * kBlock * inner;
    for (std::int64_t first = start; first < end; first += kBlock) {
      const std::int64_t last = std::min(first + kBlock, end);
      for (std::int64_t column = first; column < last; ++column) {
        const std::int8_t* const row = numbers + column * inner;
        float* const to = block + (column - first) * inner;
#pragma omp simd
        for (std::int64_t i = 0; i < inner; ++i) to[i] = static_cast<float>(row[i]) * scales[column];
      }
      gemm(Matrix(from, rows, inner, inner, 1), Matrix(block, inner, last - first, 1, inner),
           target.y + first, width, rows, last - first, inner, false);
      epilogue::finish(epilogue, target, 0, rows, first, last);
    }
  }
}

}  // namespace needle
