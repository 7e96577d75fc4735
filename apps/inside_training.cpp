#include "apps/inside_training.h"

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <vector>

#include "needle/train/run_folder.h"
#include "needle/train/watch.h"

namespace needle {

nlohmann::json training_of(const std::string& checkpoint) {
  namespace fs = std::filesystem;
  if (checkpoint.empty()) return nullptr;
  fs::path run = fs::canonical(checkpoint);
  if (!fs::exists(run / kWatchFile)) run = run.parent_path();
  if (!fs::exists(run / kWatchFile)) return nullptr;
  std::vector<std::int64_t> steps;
  std::map<std::tuple<std::string, std::string, int>, std::map<std::int64_t, double>> series;
  std::vector<std::tuple<std::string, std::string, int>> order;
  for (const WatchRow& row : read_watch(run / kWatchFile)) {
    if (steps.empty() || steps.back() != row.step) steps.push_back(row.step);
    const std::tuple key{row.layer, row.quantity, row.head};
    if (!series.contains(key)) order.push_back(key);
    series[key][row.step] = row.value;
  }
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& key : order) {
    const auto& [layer, quantity, head] = key;
    nlohmann::json values = nlohmann::json::array();
    for (const std::int64_t step : steps) {
      const auto found = series[key].find(step);
      values.push_back(found == series[key].end() ? nlohmann::json(nullptr) : nlohmann::json(found->second));
    }
    rows.push_back({{"layer", layer},
                    {"quantity", quantity},
                    {"head", head < 0 ? nlohmann::json(nullptr) : nlohmann::json(head)},
                    {"unit", quantity == "attention entropy" ? "nats"
                             : quantity == "dead units"      ? "share"
                                                             : ""},
                    {"values", values}});
  }
  return {{"run", run.filename().string()}, {"steps", steps}, {"rows", rows}};
}

}  // namespace needle
