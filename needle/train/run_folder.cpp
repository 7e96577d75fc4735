#include "needle/train/run_folder.h"

#include <iomanip>
#include <sstream>
#include <utility>

#include "needle/io/checkpoint.h"
#include "needle/io/files.h"

namespace needle {

namespace fs = std::filesystem;

namespace {

constexpr const char* kHeader =
    "step,training_loss,validation_loss,learning_rate,gradient_norm,tokens_per_second";

std::string text_of(const LossRow& row) {
  std::ostringstream text;
  text << std::setprecision(9) << row.step << ',' << row.training_loss << ',';
  if (row.validation_loss) text << *row.validation_loss;
  text << ',' << row.learning_rate << ',' << row.gradient_norm << ',' << row.tokens_per_second << '\n';
  return text.str();
}

/// The row that `line` holds; none if it is not whole, as the last one can be after a crash.
std::optional<LossRow> row_of(const std::string& line) {
  std::vector<std::string> fields;
  std::istringstream text(line);
  for (std::string field; std::getline(text, field, ',');) fields.push_back(field);
  if (fields.size() != 6) return std::nullopt;
  try {
    LossRow row{std::stoll(fields[0]), std::stod(fields[1]), {},
                std::stod(fields[3]),  std::stod(fields[4]), std::stod(fields[5])};
    if (!fields[2].empty()) row.validation_loss = std::stod(fields[2]);
    return row;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::vector<LossRow> read_losses(const fs::path& file, std::int64_t last_step) {
  std::vector<LossRow> rows;
  if (!fs::exists(file)) return rows;
  std::istringstream lines(read_file(file));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    const std::optional<LossRow> row = row_of(line);
    if (!row || row->step > last_step) break;
    rows.push_back(*row);
  }
  return rows;
}

}  // namespace

RunFolder RunFolder::create(const fs::path& path, bool overwrite) {
  RunFolder run(path);
  require(!fs::exists(path) || fs::is_directory(path), path.string(), " is not a folder");
  std::error_code error;
  fs::create_directories(path, error);
  require(!error, "cannot create ", path.string(), ": ", error.message());
  run.lock_.emplace(path);
  std::vector<fs::path> old = checkpoints_of(path);
  if (is_whole_checkpoint(run.best())) old.push_back(run.best());
  const bool holds_run = !old.empty() || fs::exists(run.losses_file());
  require(!holds_run || overwrite, path.string(), " holds a run already; go on with --resume ", path.string(),
          ", or replace it with --overwrite");
  for (const fs::path& checkpoint : old) fs::remove_all(checkpoint);
  fs::remove(run.watch_file());
  run.begin({});
  return run;
}

bool RunFolder::is_run(const fs::path& path) { return fs::exists(RunFolder(path).losses_file()); }

RunFolder RunFolder::branch(const fs::path& from, const fs::path& path, std::int64_t step, bool overwrite) {
  std::vector<LossRow> losses = read_losses(RunFolder(from).losses_file(), step);
  const fs::path watched = RunFolder(from).watch_file();
  const std::string rows = fs::exists(watched) ? read_file(watched.string()) : "";
  RunFolder run = create(path, overwrite);
  run.begin(std::move(losses));
  if (!rows.empty()) write_file_synced(run.watch_file().string(), rows);  // who goes on drops what is later
  return run;
}

RunFolder RunFolder::reopen(const fs::path& path, std::int64_t step) {
  RunFolder run(path);
  run.lock_.emplace(path);
  const std::vector<fs::path> held = checkpoints_of(path);
  require(held.empty() || step_of(held.back()) <= step, path.string(), " holds ",
          held.empty() ? "" : held.back().filename().string(), ", which is later than step ", step,
          "; go on from that, or give --out for a run of its own");
  run.begin(read_losses(run.losses_file(), step));
  return run;
}

void RunFolder::begin(std::vector<LossRow> losses) {
  losses_ = std::move(losses);
  // Written whole under another name first, so that a crash leaves either the old rows or these.
  const fs::path fresh = path_ / ".losses.csv";
  std::string text = std::string(kHeader) + '\n';
  for (const LossRow& row : losses_) text += text_of(row);
  write_file_synced(fresh, text);
  fs::rename(fresh, losses_file());
  file_.open(losses_file(), std::ios::app);
}

fs::path RunFolder::free_path(const std::string& name) {
  for (int n = 1;; ++n) {
    const fs::path path = fs::path("runs") / (name + '-' + std::to_string(n));
    if (!fs::exists(path)) return path;
  }
}

fs::path RunFolder::checkpoint(std::int64_t step) const { return path_ / ("step-" + std::to_string(step)); }

void RunFolder::append(const LossRow& row) {
  losses_.push_back(row);
  file_ << text_of(row) << std::flush;
  require(file_.good(), "cannot write ", losses_file().string());
}

void RunFolder::save(Trainer& trainer) {
  const fs::path newest = checkpoint(trainer.steps_done());
  trainer.save(newest);
  for (const fs::path& old : checkpoints_of(path_)) {
    if (old != newest && step_of(old) < trainer.steps_done()) fs::remove_all(old);
  }
}

}  // namespace needle
