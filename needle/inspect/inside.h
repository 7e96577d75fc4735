// One step, looked into: everything that a tape and its values tell, as JSON, as a page, and as a graph.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "needle/inspect/profile.h"
#include "needle/inspect/tape_values.h"

namespace needle {

/// What a record says of how it was made.
struct InsideOrigin {
  std::string title, command, machine, device;
  DType dtype = DType::f32;          ///< of the step
  DType numbers_dtype = DType::f64;  ///< of the step again, of which the numbers are
  int order = 1;                     ///< 2: of a gradient's gradient
  std::int64_t parameters = 0;       ///< numbers to be trained
  std::size_t parameter_bytes = 0, gradient_bytes = 0, moment_bytes = 0;
};

/// What a record holds.
struct InsideSettings {
  std::string only;              ///< modules at this path and below; "": all
  bool layout = true;            ///< place the graph, by Graphviz's dot
  bool definitions = true;       ///< put fused ops beside their definitions
  int followed_parameters = 12;  ///< how many parameters have an entry followed to the loss
  std::vector<std::pair<std::string, std::vector<std::int64_t>>>
      entries;  ///< further ones, by tensor and index
};

/// The record of a step as one JSON object: totals, tensors, ops, levels, events, peak, numbers, chains and
/// sources. Without `values`, for `unknown`'s reason, numbers are left out. Throws on an entry that is not
/// there, and what levels_of() and lay_out() throw.
nlohmann::json inside_json(const Tape& tape, const TapeValues* values, const std::string& unknown,
                           const InsideOrigin& origin, const InsideSettings& settings = {});

/// The record as one self-contained HTML document.
std::string inside_page(const nlohmann::json& record);

/// The graph as Graphviz reads it: modules as clusters, times and kept bytes in the labels.
std::string inside_dot(const Tape& tape, const std::string& only = {});

/// The events as the profiler has them, for write_trace().
std::vector<ProfiledOp> profiled(const Tape& tape);

/// Everything of a loss in one line of a program: walks its graph back (it and leaves' gradients stay as they
/// are) and writes the page of it to `file`. What the graph did not keep is computed again where that can be;
/// forward times are of that, forward events there are none, and numbers are of the loss's own type. `names`
/// are those of the leaves. Throws where the graph was freed.
void record(const Tensor& loss, const std::string& file = "inside.html",
            const std::vector<Parameter>& names = {});

}  // namespace needle
