// Picking and placing by index.
#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/loops.h"

namespace needle {

namespace {

/// Every index must lie in [0, size); throws at the first that does not.
void require_indices(const char* op, const View& index, std::int64_t size) {
  const std::int64_t count = index.count();
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i, offset = 0;
    for (int axis = index.rank() - 1; axis >= 0; --axis) {
      offset += rest % index.shape[axis] * index.strides[axis];
      rest /= index.shape[axis];
    }
    const std::int64_t value = index.as<std::int64_t>()[offset];
    require(value >= 0 && value < size, op, ": index ", value, " at position ", i, " is outside [0, ", size,
            ")");
  }
}

/// Calls body(offsets of x, index and y along all axes but `axis`) for each line along `axis`.
template <class Body>
void for_each_line(const View& x, const View& index, const View& y, int axis, const Body& body) {
  std::int64_t lines = 1;
  for (int a = 0; a < index.rank(); ++a) {
    if (a != axis) lines *= index.shape[a];
  }
#pragma omp parallel for schedule(static) if (index.count() >= kParallelElements)
  for (std::int64_t line = 0; line < lines; ++line) {
    std::int64_t rest = line, at_x = 0, at_index = 0, at_y = 0;
    for (int a = index.rank() - 1; a >= 0; --a) {
      if (a == axis) continue;
      const std::int64_t i = rest % index.shape[a];
      rest /= index.shape[a];
      at_x += i * x.strides[a];
      at_index += i * index.strides[a];
      at_y += i * y.strides[a];
    }
    body(at_x, at_index, at_y);
  }
}

}  // namespace

void CpuBackend::gather_rows(const View& table, const View& rows, const View& y) {
  require_indices("gather_rows", rows, table.shape[0]);
  dispatch(table.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::int64_t width = table.shape[1];
#pragma omp parallel for schedule(static) if (y.count() >= kParallelElements)
    for (std::int64_t i = 0; i < rows.shape[0]; ++i) {
      const T* from = table.as<T>() + rows.as<std::int64_t>()[i * rows.strides[0]] * table.strides[0];
      T* to = y.as<T>() + i * y.strides[0];
      for (std::int64_t c = 0; c < width; ++c) to[c * y.strides[1]] = from[c * table.strides[1]];
    }
  });
}

void CpuBackend::scatter_add_rows(const View& x, const View& rows, const View& table) {
  require_indices("scatter_add_rows", rows, table.shape[0]);
  dispatch_computing("scatter_add_rows", table.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    // Threads take columns, so that each row of the table is added to in the order of the rows of x.
    constexpr std::int64_t kColumns = 64;
    const std::int64_t width = table.shape[1];
#pragma omp parallel for schedule(static) if (x.count() >= kParallelElements)
    for (std::int64_t start = 0; start < width; start += kColumns) {
      const std::int64_t end = std::min(start + kColumns, width);
      for (std::int64_t i = 0; i < rows.shape[0]; ++i) {
        T* to = table.as<T>() + rows.as<std::int64_t>()[i * rows.strides[0]] * table.strides[0];
        const T* from = x.as<T>() + i * x.strides[0];
        for (std::int64_t c = start; c < end; ++c) to[c * table.strides[1]] += from[c * x.strides[1]];
      }
    }
  });
}

void CpuBackend::gather(const View& x, int axis, const View& index, const View& y) {
  require_indices("gather", index, x.shape[axis]);
  dispatch(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_each_line(x, index, y, axis, [&](std::int64_t at_x, std::int64_t at_index, std::int64_t at_y) {
      for (std::int64_t i = 0; i < index.shape[axis]; ++i) {
        const std::int64_t from = index.as<std::int64_t>()[at_index + i * index.strides[axis]];
        y.as<T>()[at_y + i * y.strides[axis]] = x.as<T>()[at_x + from * x.strides[axis]];
      }
    });
  });
}

void CpuBackend::scatter_add(const View& x, int axis, const View& index, const View& y) {
  require_indices("scatter_add", index, y.shape[axis]);
  dispatch_computing("scatter_add", x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_each_line(x, index, y, axis, [&](std::int64_t at_x, std::int64_t at_index, std::int64_t at_y) {
      for (std::int64_t i = 0; i < index.shape[axis]; ++i) {
        const std::int64_t to = index.as<std::int64_t>()[at_index + i * index.strides[axis]];
        y.as<T>()[at_y + to * y.strides[axis]] += x.as<T>()[at_x + i * x.strides[axis]];
      }
    });
  });
}

}  // namespace needle
