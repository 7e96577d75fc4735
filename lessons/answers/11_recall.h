// A layer of kernel 3 reads 0, d and 2 d steps back. With dilations 1, 3, 9, ... the sums of such steps are
// the numbers in base 3: k layers read 3^k positions, each by one way only. More cannot be: k layers have 3^k
// ways. (The usual doubling, 1, 2, 4, ..., reads 2^(k + 1) - 1, many of them by several ways.)
#pragma once

#include <cstdint>
#include <vector>

namespace needle::answers {

/// Dilations of the fewest layers of kernel 3 that read at least `positions`, without a hole.
inline std::vector<std::int64_t> dilations_to_read(std::int64_t positions) {
  std::vector<std::int64_t> dilations{1};
  for (std::int64_t read = 3; read < positions; read *= 3) dilations.push_back(read);
  return dilations;
}

}  // namespace needle::answers
