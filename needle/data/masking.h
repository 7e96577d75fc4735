// The masked-token objective (Devlin et al. 2019, section 3.1).
#pragma once

#include "needle/data/rows.h"
#include "needle/random.h"

namespace needle {

/// Which tokens are masked, and by what.
struct Masking {
  std::int64_t mask_id =
      0;  ///< an id of its own: the tokenizer's vocabulary size, so that a model has one more
  double fraction = 0.15;            ///< the chance of a real token to be masked
  std::int64_t ignore_index = -100;  ///< the label of what is not
};

/// `batch` with some of its real tokens replaced by the mask; those, and no others, are the labels. Row r
/// draws from stream first_example + r of `random`, once a real token, so that neither its companions nor
/// padding change its masks. Throws on a fraction outside [0, 1].
Batch mask_tokens(Batch batch, const Masking& masking, const Generator& random,
                  std::int64_t first_example = 0);

}  // namespace needle
