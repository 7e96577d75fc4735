// Timing every op of a pass, and what it moved and computed.
#pragma once

#include <string>
#include <vector>

#include "needle/observer.h"

namespace needle {

/// One application of an op.
struct ProfiledOp {
  std::string op, path;
  Phase phase;
  double start, seconds;  ///< start: since the profiler was made
  double operations;      ///< as counters.h counts them
  double bytes;           ///< of its inputs and outputs, each once
  std::vector<Shape> inputs, outputs;
};

/// Keeps a ProfiledOp for every op of its scope; the device is waited for before and after each.
class Profiler final : public Observer {
 public:
  Profiler();
  void before(const OpEvent& event) override;
  void computed(std::span<const NDArray> outputs) override;
  void after(const OpEvent& event) override;
  const std::vector<ProfiledOp>& ops() const { return ops_; }
  void clear() { ops_.clear(); }

 private:
  double origin_, started_ = 0, ended_ = 0;
  std::vector<ProfiledOp> ops_;
};

/// The ops of one name and phase together.
struct ProfileRow {
  std::string op;
  Phase phase;
  double seconds = 0, operations = 0, bytes = 0;
  std::int64_t calls = 0;
};
/// The sums of each op and phase, the longest first.
std::vector<ProfileRow> profile_table(const std::vector<ProfiledOp>& ops);

/// Writes the ops as a trace that chrome://tracing and Perfetto open. Throws when the file cannot be written.
void write_trace(const std::string& file, const std::vector<ProfiledOp>& ops);

}  // namespace needle
