#include "apps/run_folder.h"

#include <fstream>
#include <sstream>

#include "needle/inspect/svg.h"
#include "needle/io/checkpoint.h"
#include "needle/io/files.h"

namespace needle {

namespace fs = std::filesystem;

namespace {

constexpr const char* kLossesFile = "losses.csv";
constexpr const char* kHeader =
    "step,training_loss,validation_loss,learning_rate,gradient_norm,tokens_per_second";

HistoryRow parse_row(const std::string& line, const fs::path& file) {
  std::vector<std::string> fields;
  std::istringstream text(line);
  for (std::string field; std::getline(text, field, ',');) fields.push_back(field);
  try {
    HistoryRow row;
    row.step.step = std::stoll(fields.at(0));
    row.step.loss = std::stod(fields.at(1));
    if (!fields.at(2).empty()) row.validation = std::stod(fields[2]);
    row.step.learning_rate = std::stod(fields.at(3));
    row.step.gradient_norm = std::stod(fields.at(4));
    row.tokens_per_second = std::stod(fields.at(5));
    return row;
  } catch (const std::exception&) {
    fail(file.string(), ": not a row of losses: ", line);
  }
}

}  // namespace

RunFolder RunFolder::create(const std::string& path, const std::string& name, bool overwrite) {
  fs::path folder = path;
  if (path.empty()) {
    for (int n = 1; folder.empty() || fs::exists(folder); ++n)
      folder = fs::path("runs") / (name + "-" + std::to_string(n));
  }
  const bool holds_run = !checkpoints_of(folder).empty() || fs::exists(folder / kLossesFile);
  require(!holds_run || overwrite, folder.string(), " holds a run already; go on with --resume ",
          folder.string(), ", or replace it with --overwrite");
  std::error_code error;
  if (holds_run) {
    for (const fs::path& old : checkpoints_of(folder)) fs::remove_all(old);
    fs::remove_all(folder / "best");
  }
  fs::create_directories(folder, error);
  require(!error, folder.string(), ": can't make this folder: ", error.message());
  RunFolder run(folder);
  run.write_losses();
  return run;
}

RunFolder RunFolder::reopen(const fs::path& path, std::int64_t step) {
  RunFolder run(path);
  const fs::path file = path / kLossesFile;
  if (!fs::exists(file)) return run;
  std::istringstream lines(read_file(file));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    const HistoryRow row = parse_row(line, file);
    if (row.step.step <= step) run.history_.push_back(row);
  }
  return run;
}

fs::path RunFolder::save(Trainer& trainer) {
  const fs::path folder = path_ / ("step-" + std::to_string(trainer.steps_done()));
  trainer.save(folder);
  for (const fs::path& old : checkpoints_of(path_)) {
    if (old != folder) fs::remove_all(old);
  }
  return folder;
}

void RunFolder::write_losses() const {
  std::ostringstream text;
  text.precision(9);
  text << kHeader << '\n';
  for (const HistoryRow& row : history_) {
    text << row.step.step << ',' << row.step.loss << ',';
    if (row.validation) text << *row.validation;
    text << ',' << row.step.learning_rate << ',' << row.step.gradient_norm << ',' << row.tokens_per_second
         << '\n';
  }
  write_file_synced(path_ / kLossesFile, text.str());
}

void RunFolder::draw_curve(std::optional<double> floor) const {
  Series training{"training", {}, {}}, validation{"validation", {}, {}};
  for (const HistoryRow& row : history_) {
    training.x.push_back(static_cast<double>(row.step.step));
    training.y.push_back(row.step.loss);
    if (!row.validation) continue;
    validation.x.push_back(static_cast<double>(row.step.step));
    validation.y.push_back(*row.validation);
  }
  Chart chart;
  chart.title = "Loss of " + path_.filename().string();
  chart.x_label = "step";
  chart.y_label = "loss, nats per target";
  chart.series = {training, validation};
  if (floor) chart.reference_lines.push_back({"floor", *floor});
  write_file_synced(path_ / "losses.svg", draw_chart(chart));
}

}  // namespace needle
