// The masked-token objective (Devlin et al. 2019, section 3.1).
#pragma once

#include <memory>

#include "needle/data/dataset.h"
#include "needle/random.h"

namespace needle {

/// Which tokens are masked, and by what.
struct Masking {
  /// An id of its own: the tokenizer's vocabulary size, so that a model has one more.
  std::int64_t mask_id = 0;
  double fraction = 0.15;            ///< the chance of a real token to be masked
  std::int64_t ignore_index = -100;  ///< the label of what is not
  std::int64_t spared_id = -1;       ///< never masked, as BOS, which would be no riddle; -1: none
};

/// `batch` with some of its real tokens replaced by the mask; those, and no others, are the labels. Row r
/// draws from stream first_example + r of `random`, once a real token, so that neither its companions nor
/// padding change its masks. Throws on a fraction outside [0, 1].
Batch mask_tokens(Batch batch, const Masking& masking, const Generator& random,
                  std::int64_t first_example = 0);

/// Another data set with masked tokens to be told in place of its labels; its vocabulary is one larger. What
/// is masked in an example is fixed by `seed` and the example's number.
class MaskedDataset : public Dataset {
 public:
  MaskedDataset(std::unique_ptr<Dataset> inner, double fraction, std::uint64_t seed);

  Batch next_training_batch(DataPosition& position, std::int64_t size) override;
  std::vector<Batch> validation_batches(std::int64_t size) const override;
  std::int64_t examples_per_epoch() const override { return inner_->examples_per_epoch(); }
  const Tokenizer& tokenizer() const override { return inner_->tokenizer(); }
  std::int64_t vocabulary() const override { return inner_->vocabulary() + 1; }
  std::uint64_t hash() const override { return inner_->hash(); }
  std::string description() const override;
  std::int64_t longest_row() const override { return inner_->longest_row(); }

 private:
  std::unique_ptr<Dataset> inner_;
  Masking masking_;
  Generator training_, validation_;
};

}  // namespace needle
