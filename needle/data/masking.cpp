#include "needle/data/masking.h"

#include <sstream>

#include "backends/error.h"

namespace needle {

Batch mask_tokens(Batch batch, const Masking& masking, const Generator& random, std::int64_t first_example) {
  require(masking.fraction >= 0 && masking.fraction <= 1, "mask_tokens: the fraction must be in [0, 1], got ",
          masking.fraction);
  batch.labels.assign(batch.ids.size(), masking.ignore_index);
  batch.valid_targets = 0;
  batch.distances.clear();
  const auto time = static_cast<std::size_t>(batch.time);
  for (std::int64_t row = 0; row < batch.rows; ++row) {
    Generator stream = random.child(static_cast<std::uint64_t>(first_example + row));
    const std::size_t start = static_cast<std::size_t>(row) * time;
    for (std::size_t place = start; place < start + time; ++place) {
      if (batch.real[place] == 0 || stream.uniform() >= masking.fraction) continue;
      if (batch.ids[place] == masking.spared_id) continue;
      batch.labels[place] = batch.ids[place];
      batch.ids[place] = masking.mask_id;
      ++batch.valid_targets;
    }
  }
  return batch;
}

MaskedDataset::MaskedDataset(std::unique_ptr<Dataset> inner, double fraction, std::uint64_t seed)
    : inner_(std::move(inner)),
      masking_{.mask_id = inner_->vocabulary(), .fraction = fraction, .spared_id = kBeginId},
      training_(Generator(seed).child(0)),
      validation_(Generator(seed).child(1)) {}

Batch MaskedDataset::next_training_batch(DataPosition& position, std::int64_t size) {
  const std::int64_t first = position.examples_seen;
  return mask_tokens(inner_->next_training_batch(position, size), masking_, training_, first);
}

std::vector<Batch> MaskedDataset::validation_batches(std::int64_t size) const {
  std::vector<Batch> batches = inner_->validation_batches(size);
  std::int64_t first = 0;
  for (Batch& batch : batches) {
    batch = mask_tokens(std::move(batch), masking_, validation_, first);
    first += batch.rows;
  }
  return batches;
}

std::string MaskedDataset::description() const {
  std::ostringstream text;
  text << inner_->description() << "; " << 100 * masking_.fraction << " % of the tokens masked";
  return text.str();
}

}  // namespace needle
