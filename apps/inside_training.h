// What `needle train --watch` measured, for the page of `needle inside`.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace needle {

/// The page's "training" of the run at `checkpoint`, or of the run that this is in; null where it was not
/// watched. Throws when its watch.csv is damaged.
nlohmann::json training_of(const std::string& checkpoint);

}  // namespace needle
