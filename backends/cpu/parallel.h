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

/// Libraries that this thread calls start no threads of their own, as long as it lives. Inside a region of
/// one thread they would otherwise: new ones each time.
class OneThread {
 public:
  OneThread() { omp_set_num_threads(1); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  ~OneThread() { omp_set_num_threads(before_); }

 private:
  int before_ = omp_get_max_threads();
};

/// Part number `part` of `parts` of [0, size), cut at multiples of `granule`.
inline std::pair<std::int64_t, std::int64_t> part_of(std::int64_t size, std::int64_t part, std::int64_t parts,
                                                     std::int64_t granule) {
  const std::int64_t granules = (size + granule - 1) / granule;
  const auto bound = [&](std::int64_t p) { return std::min(size, granules * p / parts * granule); };
  return {bound(part), bound(part + 1)};
}

}  // namespace needle
