// Recurrences: each thread takes rows of the batch through all steps, so that no step waits for another
// thread; the weight is packed once for all steps.
#include <algorithm>
#include <utility>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/lanes.h"
#include "backends/cpu/loops.h"
#include "backends/cpu/parallel.h"
#include "backends/scratch.h"

namespace needle {

namespace {

/// A matrix [depth, columns] as panels of kColumns columns, each compact, the last filled up with zeros.
template <class T>
class Panels {
 public:
  static constexpr std::int64_t kColumns = 2 * lanes::kLanes<T>;

  /// Of data[k * row_stride + j * column_stride].
  Panels(MemoryPool& pool, const T* data, std::int64_t depth, std::int64_t columns, std::int64_t row_stride,
         std::int64_t column_stride)
      : depth_(depth),
        panels_((columns + kColumns - 1) / kColumns),
        memory_(pool, static_cast<std::size_t>(panels_ * depth * kColumns)) {
#pragma omp parallel for schedule(static) if (depth * columns >= kParallelElements)
    for (std::int64_t panel = 0; panel < panels_; ++panel) {
      const std::int64_t first = panel * kColumns, count = std::min(kColumns, columns - first);
      T* const to = memory_.data() + panel * depth * kColumns;
      if (count < kColumns) std::fill_n(to, depth * kColumns, T(0));
      if (column_stride == 1) {
        for (std::int64_t k = 0; k < depth; ++k)
          std::copy_n(data + k * row_stride + first, count, to + k * kColumns);
        continue;
      }
      // By blocks, so that the lines that a column touches are still there for the next one.
      constexpr std::int64_t kBlock = 64;
      for (std::int64_t start = 0; start < depth; start += kBlock) {
        for (std::int64_t j = 0; j < count; ++j) {
          for (std::int64_t k = start; k < std::min(start + kBlock, depth); ++k)
            to[k * kColumns + j] = data[k * row_stride + (first + j) * column_stride];
        }
      }
    }
  }

  /// Columns with those that fill up.
  std::int64_t width() const { return panels_ * kColumns; }

  /// y [kRows, width()] = a [kRows, depth] times the matrix, or y += that; rows of a are `stride` apart.
  void multiply(const T* a, std::int64_t stride, T* y, bool accumulate) const {
    for (std::int64_t panel = 0; panel < panels_; ++panel) {
      lanes::multiply_block<lanes::kRows, 2, T>({a, stride, 1},
                                                {memory_.data() + panel * depth_ * kColumns, kColumns},
                                                {y + panel * kColumns, width()}, depth_, accumulate);
    }
  }

 private:
  std::int64_t depth_, panels_;
  Scratch<T> memory_;
};

/// Sizes of a call, and where the numbers of a row and step lie.
template <class Cell, class T>
struct Recurrence {
  const RecurrentArrays& arrays;
  std::int64_t batch = arrays.states.shape[0], time = arrays.states.shape[1], width = arrays.states.shape[2];
  std::int64_t gates = Cell::kGates * width;

  bool is_real(std::int64_t b, std::int64_t t) const {
    return !arrays.real.data || arrays.real.as<bool>()[b * time + t];
  }
  T* states(std::int64_t b, std::int64_t t) const { return arrays.states.as<T>() + (b * time + t) * width; }
  T* kept(std::int64_t b, std::int64_t t) const {
    return arrays.kept.as<T>() + (b * time + t) * Cell::kKept * width;
  }
  /// State and cell before step t.
  const T* previous_state(std::int64_t b, std::int64_t t) const {
    return t > 0 ? states(b, t - 1) : arrays.state.as<T>() + b * width;
  }
  const T* previous_cell(std::int64_t b, std::int64_t t) const {
    return t > 0 ? kept(b, t - 1) + (Cell::kKept - 1) * width : arrays.cell.as<T>() + b * width;
  }

  /// Rows that one thread takes through the steps together: as many as the product's kernel has, or fewer, so
  /// that every thread has some.
  std::int64_t rows_at_once() const {
    const std::int64_t threads = available_threads();
    return std::clamp<std::int64_t>((batch + threads - 1) / threads, 1, lanes::kRows);
  }
};

constexpr bool has_cell(RecurrentCell cell) { return cell == RecurrentCell::lstm; }

/// body.operator()<0>(), ..., body.operator()<count - 1>(): a loop that is gone before loops around it become
/// vector instructions.
template <int count, class Body>
void unrolled(const Body& body) {
  [&]<int... index>(std::integer_sequence<int, index...>) { (body.template operator()<index>(), ...); }
  (std::make_integer_sequence<int, count>{});
}

/// One step of one row; `hidden` holds h U.
template <class Cell, class T>
void step_forward(const Recurrence<Cell, T>& r, const T* input, const T* hidden, const T* bias,
                  const T* cells, T* state, T* kept, T* states) {
  const std::int64_t width = r.width;
  // Not "omp simd", under which the small arrays would keep the loop from becoming vector instructions.
#pragma GCC ivdep
  for (std::int64_t j = 0; j < width; ++j) {
    CellInput<T, Cell::kGates> x;
    unrolled<Cell::kGates>([&]<int g>() {
      x.input[g] = input[g * width + j];
      x.hidden[g] = hidden[g * width + j] + bias[g * width + j];
    });
    x.state = state[j];
    x.cell = cells[j];
    T keep[Cell::kKept + 1];
    const T next = Cell::forward(x, keep);
    unrolled<Cell::kKept>([&]<int k>() { kept[k * width + j] = keep[k]; });
    state[j] = next;
    states[j] = next;
  }
}

template <class Cell, class T>
void forward(MemoryPool& pool, const RecurrentArrays& arrays, bool cells) {
  const Recurrence<Cell, T> r{arrays};
  const std::int64_t width = r.width, rows = r.rows_at_once(), groups = (r.batch + rows - 1) / rows;
  const Panels<T> weight(pool, arrays.weight.as<T>(), width, r.gates, r.gates, 1);
  const Scratch<T> states(pool, static_cast<std::size_t>(groups * lanes::kRows * width)),
      sums(pool, static_cast<std::size_t>(groups * lanes::kRows * weight.width())),
      zeros(pool, static_cast<std::size_t>(r.gates));
  std::fill_n(zeros.data(), r.gates, T(0));
  const T* bias = arrays.bias.data ? arrays.bias.as<T>() : zeros.data();
#pragma omp parallel for schedule(static) if (groups > 1)
  for (std::int64_t group = 0; group < groups; ++group) {
    const std::int64_t first = group * rows, count = std::min(rows, r.batch - first);
    T* const state = states.data() + group * lanes::kRows * width;
    T* const sum = sums.data() + group * lanes::kRows * weight.width();
    std::fill_n(state, lanes::kRows * width, T(0));
    for (std::int64_t i = 0; i < count; ++i)
      std::copy_n(r.previous_state(first + i, 0), width, state + i * width);
    for (std::int64_t t = 0; t < r.time; ++t) {
      weight.multiply(state, width, sum, false);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t b = first + i;
        const T* cell = cells ? r.previous_cell(b, t) : zeros.data();
        if (r.is_real(b, t)) {
          step_forward(r, arrays.input.as<T>() + (b * r.time + t) * r.gates, sum + i * weight.width(), bias,
                       cell, state + i * width, r.kept(b, t), r.states(b, t));
          continue;
        }
        std::copy_n(state + i * width, width, r.states(b, t));
        if (cells) std::copy_n(cell, width, r.kept(b, t) + (Cell::kKept - 1) * width);
      }
    }
  }
}

/// One step back of one row: `dstate` and `dcell` go from those after the step to those before it, but for
/// what goes through h U, whose gradient is left in `dhidden`.
template <class Cell, class T>
void step_backward(const Recurrence<Cell, T>& r, std::int64_t b, std::int64_t t, const T* cells,
                   const T* dstates, T* dstate, T* dcell, T* dhidden, const RecurrentGradients& gradients) {
  const std::int64_t width = r.width;
  const T *next = r.states(b, t), *state = r.previous_state(b, t), *kept = r.kept(b, t);
  T* const dinputs = gradients.input.as<T>() + (b * r.time + t) * r.gates;
  T* const dhiddens = gradients.hidden.as<T>() + (b * r.time + t) * r.gates;
#pragma GCC ivdep
  for (std::int64_t j = 0; j < width; ++j) {
    T keep[Cell::kKept + 1];
    unrolled<Cell::kKept>([&]<int k>() { keep[k] = kept[k * width + j]; });
    const CellGradient<T, Cell::kGates> g =
        Cell::gradient(next[j], state[j], cells[j], keep, dstate[j] + dstates[j], dcell[j]);
    unrolled<Cell::kGates>([&]<int gate>() {
      dhiddens[gate * width + j] = g.hidden[gate];
      dinputs[gate * width + j] = g.input[gate];
      dhidden[gate * width + j] = g.hidden[gate];
    });
    dstate[j] = g.state;
    dcell[j] = g.cell;
  }
}

template <class Cell, class T>
void backward(MemoryPool& pool, const RecurrentArrays& arrays, const RecurrentGradients& gradients,
              bool cells) {
  const Recurrence<Cell, T> r{arrays};
  const std::int64_t width = r.width, rows = r.rows_at_once(), groups = (r.batch + rows - 1) / rows;
  const Panels<T> transposed(pool, arrays.weight.as<T>(), r.gates, width, 1, r.gates);
  const std::int64_t padded = transposed.width();
  const Scratch<T> dstates(pool, static_cast<std::size_t>(groups * lanes::kRows * padded)),
      dcells(pool, static_cast<std::size_t>(groups * lanes::kRows * width)),
      dhiddens(pool, static_cast<std::size_t>(groups * lanes::kRows * r.gates)),
      zeros(pool, static_cast<std::size_t>(width));
  std::fill_n(zeros.data(), width, T(0));
#pragma omp parallel for schedule(static) if (groups > 1)
  for (std::int64_t group = 0; group < groups; ++group) {
    const std::int64_t first = group * rows, count = std::min(rows, r.batch - first);
    T* const dstate = dstates.data() + group * lanes::kRows * padded;
    T* const dcell = dcells.data() + group * lanes::kRows * width;
    T* const dhidden = dhiddens.data() + group * lanes::kRows * r.gates;
    std::fill_n(dstate, lanes::kRows * padded, T(0));
    std::fill_n(dcell, lanes::kRows * width, T(0));
    std::fill_n(dhidden, lanes::kRows * r.gates, T(0));
    if (gradients.last_cell.data)
      std::copy_n(gradients.last_cell.as<T>() + first * width, count * width, dcell);
    for (std::int64_t t = r.time - 1; t >= 0; --t) {
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t b = first + i, place = b * r.time + t;
        const T* incoming = gradients.states.as<T>() + place * width;
        T *const of_state = dstate + i * padded, *const of_hidden = dhidden + i * r.gates;
        if (r.is_real(b, t)) {
          step_backward(r, b, t, cells ? r.previous_cell(b, t) : zeros.data(), incoming, of_state,
                        dcell + i * width, of_hidden, gradients);
          continue;
        }
        for (std::int64_t j = 0; j < width; ++j) of_state[j] += incoming[j];
        std::fill_n(of_hidden, r.gates, T(0));
        std::fill_n(gradients.input.as<T>() + place * r.gates, r.gates, T(0));
        std::fill_n(gradients.hidden.as<T>() + place * r.gates, r.gates, T(0));
      }
      transposed.multiply(dhidden, r.gates, dstate, true);
    }
    for (std::int64_t i = 0; i < count; ++i) {
      std::copy_n(dstate + i * padded, width, gradients.state.as<T>() + (first + i) * width);
      if (cells) std::copy_n(dcell + i * width, width, gradients.cell.as<T>() + (first + i) * width);
    }
  }
}

}  // namespace

void CpuBackend::recurrence(RecurrentCell cell, const RecurrentArrays& arrays) {
  dispatch_computing("recurrence", arrays.states.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    dispatch_cell(cell, [&](auto kind) { forward<decltype(kind), T>(pool_, arrays, has_cell(cell)); });
  });
}

void CpuBackend::recurrence_gradient(RecurrentCell cell, const RecurrentArrays& arrays,
                                     const RecurrentGradients& gradients) {
  dispatch_computing("recurrence", arrays.states.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    dispatch_cell(cell,
                  [&](auto kind) { backward<decltype(kind), T>(pool_, arrays, gradients, has_cell(cell)); });
  });
}

}  // namespace needle
