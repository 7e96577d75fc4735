#include "needle/data/masking.h"

#include "backends/error.h"

namespace needle {

Batch mask_tokens(Batch batch, const Masking& masking, const Generator& random, std::int64_t first_example) {
  require(masking.fraction >= 0 && masking.fraction <= 1, "mask_tokens: the fraction must be in [0, 1], got ",
          masking.fraction);
  batch.labels.assign(batch.ids.size(), masking.ignore_index);
  batch.valid_targets = 0;
  const auto time = static_cast<std::size_t>(batch.time);
  for (std::int64_t row = 0; row < batch.rows; ++row) {
    Generator stream = random.child(static_cast<std::uint64_t>(first_example + row));
    const std::size_t start = static_cast<std::size_t>(row) * time;
    for (std::size_t place = start; place < start + time; ++place) {
      if (batch.real[place] == 0 || stream.uniform() >= masking.fraction) continue;
      batch.labels[place] = batch.ids[place];
      batch.ids[place] = masking.mask_id;
      ++batch.valid_targets;
    }
  }
  return batch;
}

}  // namespace needle
