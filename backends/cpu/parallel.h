// How work is shared out to threads.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace needle {

/// Threads that a parallel region would get here: one inside of another region.
inline int available_threads() { return omp_in_parallel() ? 1 : omp_get_max_threads(); }

/// This thread's number in [0, available_threads()).
inline int thread_number() { return omp_get_thread_num(); }

/// Part number `part` of `parts` of [0, size), cut at multiples of `granule`.
inline std::pair<std::int64_t, std::int64_t> part_of(std::int64_t size, std::int64_t part, std::int64_t parts,
                                                     std::int64_t granule) {
  const std::int64_t granules = (size + granule - 1) / granule;
  const auto bound = [&](std::int64_t p) { return std::min(size, granules * p / parts * granule); };
  return {bound(part), bound(part + 1)};
}

}  // namespace needle
