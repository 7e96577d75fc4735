// Recurrences. Where the weight is small, one kernel goes through all steps: a block takes rows of the batch,
// which depend on no others, and holds as much of the weight in shared memory as fits there. Else each step
// is a product by cuBLAS and a kernel for the cells.
#include <algorithm>

#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/device_code.h"

namespace needle {

namespace {

/// The arrays of a call, and where the numbers of a row and step lie.
template <class Cell>
struct Recurrence {
  const float *input, *bias, *state, *cell;
  const bool* real;
  float *states, *kept;
  std::int64_t batch, time, width;

  explicit Recurrence(const RecurrentArrays& x)
      : input(x.input.as<float>()),
        bias(x.bias.as<float>()),
        state(x.state.as<float>()),
        cell(x.cell.as<float>()),
        real(x.real.as<bool>()),
        states(x.states.as<float>()),
        kept(x.kept.as<float>()),
        batch(x.states.shape[0]),
        time(x.states.shape[1]),
        width(x.states.shape[2]) {}

  __device__ std::int64_t place(std::int64_t b, std::int64_t t) const { return b * time + t; }
  __device__ bool is_real(std::int64_t b, std::int64_t t) const { return !real || real[place(b, t)]; }
  __device__ float* kept_of(std::int64_t b, std::int64_t t, std::int64_t j) const {
    return kept + place(b, t) * Cell::kKept * width + j;
  }
  /// State and cell of unit j before step t.
  __device__ float state_before(std::int64_t b, std::int64_t t, std::int64_t j) const {
    return t > 0 ? states[place(b, t - 1) * width + j] : state[b * width + j];
  }
  __device__ float cell_before(std::int64_t b, std::int64_t t, std::int64_t j) const {
    if (!cell) return 0.0f;
    return t > 0 ? kept_of(b, t - 1, j)[(Cell::kKept - 1) * width] : cell[b * width + j];
  }
};

/// Gradients of a call. Those of state and cell go from what follows the last step to what precedes the
/// first.
struct Gradients {
  const float* states;
  float *input, *hidden, *state, *cell;
  explicit Gradients(const RecurrentGradients& g)
      : states(g.states.as<float>()),
        input(g.input.as<float>()),
        hidden(g.hidden.as<float>()),
        state(g.state.as<float>()),
        cell(g.cell.as<float>()) {}
};

/// One step of unit j in row b, given its products h U: its next state.
template <class Cell>
__device__ float step_forward(const Recurrence<Cell>& r, std::int64_t b, std::int64_t t, std::int64_t j,
                              const float (&products)[Cell::kGates]) {
  CellInput<float, Cell::kGates> x;
  x.state = r.state_before(b, t, j);
  x.cell = r.cell_before(b, t, j);
  float next = x.state;
  float* const kept = r.kept_of(b, t, j);
  if (r.is_real(b, t)) {
    const float* const input = r.input + r.place(b, t) * Cell::kGates * r.width + j;
    NEEDLE_UNROLL
    for (int gate = 0; gate < Cell::kGates; ++gate) {
      x.input[gate] = input[gate * r.width];
      x.hidden[gate] = products[gate] + (r.bias ? r.bias[gate * r.width + j] : 0.0f);
    }
    float keep[Cell::kKept + 1];
    next = Cell::forward(x, keep);
    NEEDLE_UNROLL
    for (int k = 0; k < Cell::kKept; ++k) kept[k * r.width] = keep[k];
  } else if (r.cell) {
    kept[(Cell::kKept - 1) * r.width] = x.cell;
  }
  r.states[r.place(b, t) * r.width + j] = next;
  return next;
}

/// One step back of unit j in row b, but for what goes through h U, whose gradient is among those that are
/// returned.
template <class Cell>
__device__ __forceinline__ CellGradient<float, Cell::kGates> step_backward(const Recurrence<Cell>& r,
                                                                           const Gradients& g, std::int64_t b,
                                                                           std::int64_t t, std::int64_t j) {
  CellGradient<float, Cell::kGates> result = {};
  const std::int64_t place = r.place(b, t), unit = b * r.width + j;
  const float dnext = g.state[unit] + g.states[place * r.width + j];
  result.state = dnext;
  if (r.is_real(b, t)) {
    float keep[Cell::kKept + 1];
    NEEDLE_UNROLL
    for (int k = 0; k < Cell::kKept; ++k) keep[k] = r.kept_of(b, t, j)[k * r.width];
    result = Cell::gradient(r.states[place * r.width + j], r.state_before(b, t, j), r.cell_before(b, t, j),
                            keep, dnext, g.cell ? g.cell[unit] : 0.0f);
    if (g.cell) g.cell[unit] = result.cell;
  }
  g.state[unit] = result.state;
  NEEDLE_UNROLL
  for (int gate = 0; gate < Cell::kGates; ++gate) {
    const std::int64_t at = (place * Cell::kGates + gate) * r.width + j;
    g.hidden[at] = result.hidden[gate];
    g.input[at] = result.input[gate];
  }
  return result;
}

// --- all steps in one kernel ---------------------------------------------------------------------------

constexpr int kMostThreads = 1024;

/// The numbers of a block's rows.
template <int kRows>
struct alignas(kRows * sizeof(float)) Rows {
  float of[kRows];
};

/// A product of a block's rows with a matrix [depth, columns]: each column's sum over the depth is cut into
/// slices, so that all threads have some. The first rows of the matrix are held in shared memory.
struct BlockProduct {
  const float* matrix;
  int depth, columns, slices, held;
};

/// A block's shared memory.
template <int kRows>
struct BlockMemory {
  Rows<kRows>* factors;  ///< [depth]
  Rows<kRows>* sums;     ///< [slices, columns]
  float* held;           ///< [held, columns]

  __device__ BlockMemory(float* memory, const BlockProduct& product)
      : factors(reinterpret_cast<Rows<kRows>*>(memory)),
        sums(factors + product.depth),
        held(reinterpret_cast<float*>(sums + product.slices * product.columns)) {}
  static std::int64_t bytes(const BlockProduct& product) {
    const std::int64_t rows = product.depth + product.slices * product.columns;
    return rows * std::int64_t{sizeof(Rows<kRows>)} +
           std::int64_t{sizeof(float)} * product.held * product.columns;
  }
};

template <int kRows>
__device__ void hold_matrix(const BlockProduct& product, const BlockMemory<kRows>& memory) {
  for (int i = static_cast<int>(threadIdx.x); i < product.held * product.columns;
       i += static_cast<int>(blockDim.x))
    memory.held[i] = product.matrix[i];
}

/// sum += factors [first, last) times a column, `step` apart.
template <int kRows>
__device__ void add_products(const Rows<kRows>* factors, const float* column, int first, int last, int step,
                             Rows<kRows>& sum) {
  for (int k = first; k < last; ++k) {
    const float weight = column[k * step];
    const Rows<kRows> factor = factors[k];
    NEEDLE_UNROLL
    for (int row = 0; row < kRows; ++row) sum.of[row] += factor.of[row] * weight;
  }
}

/// The sums of all slices.
template <int kRows>
__device__ void multiply(const BlockProduct& product, const BlockMemory<kRows>& memory) {
  const int columns = product.columns;
  for (int i = static_cast<int>(threadIdx.x); i < product.slices * columns;
       i += static_cast<int>(blockDim.x)) {
    const int slice = i / columns, column = i % columns;
    const int first = product.depth * slice / product.slices,
              last = product.depth * (slice + 1) / product.slices;
    const int border = min(max(product.held, first), last);
    Rows<kRows> sum = {};
    add_products(memory.factors, memory.held + column, first, border, columns, sum);
    add_products(memory.factors, product.matrix + column, border, last, columns, sum);
    memory.sums[i] = sum;
  }
}

/// Element of the product, once it is there.
template <int kRows>
__device__ float product_at(const BlockProduct& product, const BlockMemory<kRows>& memory, int row,
                            int column) {
  float sum = 0.0f;
  for (int slice = 0; slice < product.slices; ++slice)
    sum += memory.sums[slice * product.columns + column].of[row];
  return sum;
}

/// The factors are the states.
template <class Cell, int kRows>
__global__ void __launch_bounds__(kMostThreads, 1) forward_kernel(Recurrence<Cell> r, BlockProduct product) {
  NEEDLE_DYNAMIC_SHARED(float, buffer);
  const BlockMemory<kRows> memory(buffer, product);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kRows;
  const int width = static_cast<int>(r.width), step = static_cast<int>(blockDim.x);
  hold_matrix(product, memory);
  for (int i = static_cast<int>(threadIdx.x); i < kRows * width; i += step) {
    const int row = i / width, j = i % width;
    memory.factors[j].of[row] = first + row < r.batch ? r.state[(first + row) * width + j] : 0.0f;
  }
  __syncthreads();
  for (std::int64_t t = 0; t < r.time; ++t) {
    multiply(product, memory);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kRows * width; i += step) {
      const int row = i / width, j = i % width;
      if (first + row >= r.batch) break;
      float products[Cell::kGates];
      NEEDLE_UNROLL
      for (int gate = 0; gate < Cell::kGates; ++gate)
        products[gate] = product_at(product, memory, row, gate * width + j);
      memory.factors[j].of[row] = step_forward(r, first + row, t, j, products);
    }
    __syncthreads();
  }
}

/// The factors are the gradients of h U, the matrix is the weight's transpose.
template <class Cell, int kRows>
__global__ void __launch_bounds__(kMostThreads, 1)
    backward_kernel(Recurrence<Cell> r, Gradients g, BlockProduct product) {
  NEEDLE_DYNAMIC_SHARED(float, buffer);
  const BlockMemory<kRows> memory(buffer, product);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kRows;
  const int width = static_cast<int>(r.width), step = static_cast<int>(blockDim.x);
  hold_matrix(product, memory);
  for (int k = static_cast<int>(threadIdx.x); k < product.depth; k += step) memory.factors[k] = {};
  __syncthreads();
  for (std::int64_t t = r.time - 1; t >= 0; --t) {
    for (int i = static_cast<int>(threadIdx.x); i < kRows * width; i += step) {
      const int row = i / width, j = i % width;
      if (first + row >= r.batch) break;
      const CellGradient<float, Cell::kGates> gradient = step_backward(r, g, first + row, t, j);
      NEEDLE_UNROLL
      for (int gate = 0; gate < Cell::kGates; ++gate)
        memory.factors[gate * width + j].of[row] = gradient.hidden[gate];
    }
    __syncthreads();
    multiply(product, memory);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kRows * width; i += step) {
      const int row = i / width, j = i % width;
      if (first + row >= r.batch) break;
      g.state[(first + row) * width + j] += product_at(product, memory, row, j);
    }
  }
}

/// Up to this many weights, reading them anew at each step takes no longer than starting kernels for it.
constexpr std::int64_t kMostWeights = 1 << 18;
/// Batches of up to this size go row by row, as the device has room for as many blocks.
constexpr std::int64_t kSmallBatch = 64;
constexpr int kRowsOfBlock = 4;

struct BlockPlan {
  BlockProduct product;
  cuda::LaunchConfig launch;
};

/// How blocks of kRows rows multiply by a matrix in `limit` bytes of shared memory.
template <int kRows>
BlockPlan plan_blocks(const float* matrix, std::int64_t depth, std::int64_t columns, std::int64_t batch,
                      std::int64_t limit) {
  constexpr std::int64_t kShortest = 16;  // slice
  const std::int64_t slices =
      std::clamp<std::int64_t>(kMostThreads / columns, 1, std::max<std::int64_t>(depth / kShortest, 1));
  BlockProduct product{matrix, static_cast<int>(depth), static_cast<int>(columns), static_cast<int>(slices),
                       0};
  const std::int64_t bytes_of_row = columns * std::int64_t{sizeof(float)};
  product.held = static_cast<int>(
      std::clamp<std::int64_t>((limit - BlockMemory<kRows>::bytes(product)) / bytes_of_row, 0, depth));
  const std::int64_t threads = std::min<std::int64_t>(kMostThreads, (columns * slices + 31) / 32 * 32);
  return {product,
          {dim3(static_cast<unsigned>((batch + kRows - 1) / kRows)), dim3(static_cast<unsigned>(threads)),
           static_cast<std::size_t>(BlockMemory<kRows>::bytes(product))}};
}

/// function(std::integral_constant of the rows that a block takes).
template <class Function>
void dispatch_rows(std::int64_t batch, const Function& function) {
  if (batch <= kSmallBatch) return function(std::integral_constant<int, 1>{});
  function(std::integral_constant<int, kRowsOfBlock>{});
}

std::int64_t shared_memory_limit(int device) {
  int bytes = 0;
  NEEDLE_CUDA_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return bytes;
}

// --- a kernel for each step ----------------------------------------------------------------------------

template <class Cell>
__global__ void __launch_bounds__(256)
    forward_step_kernel(Recurrence<Cell> r, std::int64_t t, const float* all_products) {
  for (std::int64_t i = cuda::grid_index(); i < r.batch * r.width; i += cuda::grid_stride()) {
    const std::int64_t b = i / r.width, j = i % r.width;
    float products[Cell::kGates];
    NEEDLE_UNROLL
    for (int gate = 0; gate < Cell::kGates; ++gate)
      products[gate] = all_products[(b * Cell::kGates + gate) * r.width + j];
    step_forward(r, b, t, j, products);
  }
}

template <class Cell>
__global__ void __launch_bounds__(256) backward_step_kernel(Recurrence<Cell> r, Gradients g, std::int64_t t) {
  for (std::int64_t i = cuda::grid_index(); i < r.batch * r.width; i += cuda::grid_stride())
    step_backward(r, g, i / r.width, t, i % r.width);
}

/// Step t of x [batch, time, width].
View at_time(View x, std::int64_t t) {
  x.data = x.as<float>() + t * x.strides[1];
  x.shape.erase(1);
  x.strides.erase(1);
  return x;
}

View transposed(View matrix) {
  std::swap(matrix.shape[0], matrix.shape[1]);
  std::swap(matrix.strides[0], matrix.strides[1]);
  return matrix;
}

}  // namespace

void CudaBackend::recurrence(RecurrentCell cell, const RecurrentArrays& arrays) {
  cuda::require_float32("recurrence", arrays.states.dtype);
  if (arrays.states.count() == 0) return;
  const View& weight = arrays.weight;
  const std::int64_t batch = arrays.states.shape[0], time = arrays.states.shape[1];
  dispatch_cell(cell, [&](auto kind) {
    using Cell = decltype(kind);
    const Recurrence<Cell> r(arrays);
    if (weight.count() <= kMostWeights) {
      return dispatch_rows(batch, [&](auto rows) {
        const BlockPlan plan = plan_blocks<rows>(weight.as<float>(), weight.shape[0], weight.shape[1], batch,
                                                 shared_memory_limit(index_));
        run(forward_kernel<Cell, rows>, plan.launch, r, plan.product);
      });
    }
    const Shape shape{batch, weight.shape[1]};
    const auto memory = scratch<float>(shape.count());
    const View products{memory.data(), DType::f32, shape, compact_strides(shape)};
    for (std::int64_t t = 0; t < time; ++t) {
      matmul(t > 0 ? at_time(arrays.states, t - 1) : arrays.state, weight, products, false);
      run_elements(forward_step_kernel<Cell>, batch * r.width, r, t, memory.data());
    }
  });
}

void CudaBackend::recurrence_gradient(RecurrentCell cell, const RecurrentArrays& arrays,
                                      const RecurrentGradients& gradients) {
  cuda::require_float32("recurrence", arrays.states.dtype);
  fill(0, gradients.state);
  if (gradients.last_cell.data)
    copy(gradients.last_cell, gradients.cell);
  else if (gradients.cell.data)
    fill(0, gradients.cell);
  if (arrays.states.count() == 0) return;
  const View weight = transposed(arrays.weight);
  const std::int64_t batch = arrays.states.shape[0], time = arrays.states.shape[1];
  dispatch_cell(cell, [&](auto kind) {
    using Cell = decltype(kind);
    const Recurrence<Cell> r(arrays);
    const Gradients g(gradients);
    if (weight.count() <= kMostWeights) {
      const auto memory = scratch<float>(weight.count());
      copy(weight, {memory.data(), DType::f32, weight.shape, compact_strides(weight.shape)});
      return dispatch_rows(batch, [&](auto rows) {
        const BlockPlan plan = plan_blocks<rows>(memory.data(), weight.shape[0], weight.shape[1], batch,
                                                 shared_memory_limit(index_));
        run(backward_kernel<Cell, rows>, plan.launch, r, g, plan.product);
      });
    }
    for (std::int64_t t = time - 1; t >= 0; --t) {
      run_elements(backward_step_kernel<Cell>, batch * r.width, r, g, t);
      matmul(at_time(gradients.hidden, t), weight, gradients.state, true);
    }
  });
}

}  // namespace needle
