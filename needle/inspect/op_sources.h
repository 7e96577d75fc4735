// Where an op is written: the sources that `needle inside` shows beside it, gathered when the library is
// built.
#pragma once

#include <string>
#include <vector>

namespace needle {

/// A piece of source that belongs to an op.
struct OpSource {
  const char*
      what;  ///< "formula", "compute", "gradient", "definition", "fast gradient", "kernel on cpu", ...
  const char* file;  ///< from the project's root
  int line;          ///< of its first line
  const char* text;
};

/// Those of the op of that name; none when it is not the library's.
std::vector<OpSource> sources_of(const std::string& op);

}  // namespace needle
