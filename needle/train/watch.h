// Looking into training: every so many steps, how gradients, updates, activations and attention are, by
// layer.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "needle/nn/module.h"
#include "needle/ops/attention_watch.h"

namespace needle {

/// A measurement of watch.csv.
struct WatchRow {
  std::int64_t step = 0;  ///< counted from 1
  std::string layer;      ///< a parameter's name, or a module's path
  std::string quantity;   ///< "gradient norm", "update to weight", "activation spread", "dead units",
                          ///< "attention entropy"
  int head = -1;          ///< of an attention, else -1
  double value = 0;       ///< dead units: a share; entropy: nats; the others: numbers
};

/// The rows of such a file; a last one that was not written to its end is left out. Throws when it is
/// damaged.
std::vector<WatchRow> read_watch(const std::filesystem::path& file);

/// Watches steps 1, 1 + every, 1 + 2 every, ... of a run and adds rows to a CSV file: of parameters the
/// gradient's norm before clipping and the update's over the weight's; of modules the deviation of their last
/// output; of activation functions the share of units above 0 nowhere in the step; of attentions each head's
/// mean entropy.
class TrainingWatch final : public Observer {
 public:
  /// Rows of the file that are later than step `after` are dropped: they are about to come again.
  TrainingWatch(std::vector<Parameter> parameters, std::filesystem::path file, std::int64_t every,
                std::int64_t after);

  /// Who watches that step: this, or `otherwise`.
  Observer* of_step(std::int64_t step, Observer* otherwise);

  void before(const OpEvent& event) override;
  void after(const OpEvent& event) override;

 private:
  void note(const std::string& layer, const std::string& quantity, double value, int head = -1);
  void look_at_attention(const std::string& path, const NDArray& weights);

  std::vector<Parameter> parameters_;
  std::filesystem::path file_;
  std::int64_t every_, step_ = 0;
  std::ofstream stream_;
  std::optional<AttentionWatch> attention_;
  std::map<std::string, double> spreads_;  // by module; the last output counts
  std::map<std::string, std::vector<double>>
      highest_;  // by module: of each unit, over all passes of the step
  std::map<std::string, std::pair<std::vector<double>, double>>
      entropies_;  // sums by head, and their queries
  std::vector<NDArray> weights_before_;
  std::vector<WatchRow> rows_;  // of the step
};

}  // namespace needle
