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

/// The rows of such a file. Throws when it is damaged.
std::vector<WatchRow> read_watch(const std::filesystem::path& file);

/// Watches steps 1, 1 + every, 1 + 2 every, ... of a training run, and adds what it measured to a CSV file:
/// - of each parameter the norm of its gradient (before clipping), and the norm of its update over its own;
/// - of each module the deviation of what it puts out, and of each activation function the share of units
/// that
///   are above 0 nowhere in the batch;
/// - of each attention and head the mean entropy of the weights of its queries.
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
  std::vector<NDArray> weights_before_;
  std::vector<WatchRow> rows_;  // of the step
};

}  // namespace needle
