// Picking and placing by index.
#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/loops.h"

namespace needle {

namespace {

/// Every index must lie in [0, size); throws at the first that does not.
void require_indices(const char* op, const View& index, std::int64_t size) {
  const std::int64_t* ids = index.as<std::int64_t>();
  const StridedLoop<1> loop({index});
  bool outside = false;
  loop.run([&](const auto& offsets, std::int64_t count) {
    bool found = false;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t value = ids[offsets[0] + i * loop.run_strides()[0]];
      found |= value < 0 || value >= size;
    }
    if (found) {
#pragma omp atomic write
      outside = true;
    }
  });
  for (std::int64_t i = 0; outside; ++i) {
    const std::int64_t value = ids[offset_of(i, index.shape, index.strides)];
    require(value >= 0 && value < size, op, ": index ", value, " at position ", i, " is outside [0, ", size,
            ")");
  }
}

/// Calls body(offsets in x, index and y) for each line along `axis`; the axes of `index` count the lines.
template <class Body>
void for_each_line(View x, View index, View y, int axis, const Body& body) {
  const std::int64_t elements = index.count();
  for (View* view : {&x, &index, &y}) {
    view->shape.erase(axis);
    view->strides.erase(axis);
  }
  const std::int64_t lines = elements == 0 ? 0 : index.count();
#pragma omp parallel for schedule(static) if (elements >= kParallelElements)
  for (std::int64_t line = 0; line < lines; ++line) {
    body(offset_of(line, index.shape, x.strides), offset_of(line, index.shape, index.strides),
         offset_of(line, index.shape, y.strides));
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
