#include "apps/compare_runs.h"

#include <algorithm>
#include <cmath>
#include <ctime>

#include "apps/terminal.h"
#include "backends/clock.h"
#include "needle/inspect/attention_weights.h"
#include "needle/inspect/boundary.h"
#include "needle/train/run_folder.h"

namespace needle {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

/// Positions of the pictures; more cannot be told apart.
constexpr std::int64_t kPictured = 24;

/// A row of the validation data, cut to what a picture shows.
SequenceInput pictured_input(const Dataset& data, Device device, std::vector<std::string>& tokens) {
  const Batch batch = data.validation_batches(1).front();
  const std::int64_t time =
      std::min(kPictured,
               static_cast<std::int64_t>(std::count(batch.real.begin(), batch.real.begin() + batch.time, 1)));
  const std::vector<std::int64_t> ids(batch.ids.begin(), batch.ids.begin() + time);
  for (const std::int64_t id : ids) {
    const std::string text = data.tokenizer().decode(std::vector{id});
    tokens.push_back(id == kBeginId ? "BOS" : id == kEndId ? "EOS" : text);
  }
  return {NDArray::from(ids, {1, time}, device), {}, {}};
}

/// Who reads whom in the trained model, and what the heads of its last attention look at.
std::vector<std::string> pictures_of(const std::string& family, SequenceModel& model, const Dataset& data,
                                     Device device) {
  Generator random(1);
  const Boundary boundary =
      measure_boundary(model, random_input(model.config(), kPictured, random, device), random);
  std::vector<std::string> pictures{draw_heat_map(boundary_picture(boundary, family + ": who reads whom"))};
  std::vector<std::string> tokens;
  const SequenceInput input = pictured_input(data, device, tokens);
  if (!model.config().has_attention()) return pictures;
  const LayerWeights last = attention_weights_of(model, input, model.config().layers - 1).back();
  for (std::int64_t head = 0; head < last.weights.size(1); ++head)
    pictures.push_back(draw_heat_map(attention_picture(last, 0, head, tokens, tokens)));
  return pictures;
}

std::string present_time() {
  const std::time_t now = std::time(nullptr);
  char text[32] = {};
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M", std::localtime(&now));
  return text;
}

}  // namespace

CompareRuns::CompareRuns(const CompareSettings& settings, std::vector<DataSettings> tasks,
                         const std::string& out, Device device)
    : settings_(settings),
      tasks_(std::move(tasks)),
      folder_(out.empty() ? RunFolder::free_path("compare") : fs::path(out)),
      device_(device) {
  json wanted = to_json_value(settings_);
  for (const DataSettings& task : tasks_) wanted["tasks"].push_back(task.name());
  const fs::path file = folder_ / "settings.json";
  fs::create_directories(folder_);
  lock_.emplace(folder_);
  if (fs::exists(file)) {
    const json found = parse_json(read_file(file), file.string());
    require(found == parse_json(wanted.dump(), "settings"), folder_.string(),
            ": holds a comparison with other settings; give another --out");
  } else {
    write_file_synced(file, wanted.dump(1) + "\n");
  }
}

std::vector<CompareRuns::Entry> CompareRuns::plan(Dataset& data) {
  std::vector<Entry> entries;
  const std::int64_t longest = data.longest_row() > 0 ? data.longest_row() : settings_.training.model.context;
  double mean_operations = 0;
  for (const std::string& name : settings_.models) {
    Entry entry;
    entry.result.name = name;
    entry.result.model = model_of_family(name, settings_, data);
    entry.result.facts = facts_of(entry.result.model, longest, device_);
    for (const std::int64_t factor : {1, 2, 4}) {
      const PassSizes sizes{1, factor * longest, 1};
      entry.result.growth.emplace_back(sizes.time, operations_of(forward_cost(entry.result.model, sizes)));
    }
    // A step goes forward once and back twice as far.
    entry.operations =
        3 * entry.result.facts.operations_per_token * static_cast<double>(settings_.training.batch * longest);
    entry.seconds = seconds_of_step(entry.result.model, settings_, data, device_);
    mean_operations += entry.operations / static_cast<double>(settings_.models.size());
    entries.push_back(std::move(entry));
  }
  for (Entry& entry : entries) {
    double steps = static_cast<double>(settings_.training.steps);
    if (settings_.budget == Budget::seconds) steps = settings_.seconds / entry.seconds;
    if (settings_.budget == Budget::operations)
      steps = (settings_.operations > 0 ? settings_.operations : steps * mean_operations) / entry.operations;
    entry.steps = std::max<std::int64_t>(1, std::llround(steps));
  }
  return entries;
}

bool CompareRuns::tell(const std::string& text, double seconds_of_this) {
  const double done = done_seconds_ + seconds_of_this, real = now() - started_;
  // Expected seconds become real ones by the part that was trained so far.
  const double trained = done - skipped_seconds_, pace = trained > 0 ? real / trained : 1;
  show_(percent(done, all_seconds_) + "   " + text + "   " + duration(pace * (all_seconds_ - done)) +
        " left");
  return !stopped_();
}

std::optional<ComparedResult> CompareRuns::result_of(const std::string& task, Entry& entry,
                                                     const ComparedRun& run, Dataset& data) {
  const fs::path file = folder_ / "runs" / task / (run.name() + ".json");
  const double expected = entry.seconds * static_cast<double>(run.steps);
  std::optional<ComparedResult> result;
  const bool pictured = !run.search && run.seed == 1;
  if (fs::exists(file)) {
    const json kept = parse_json(read_file(file), file.string());
    result = kept.at("result").get<ComparedResult>();
    if (pictured) entry.result.pictures = kept.at("pictures").get<std::vector<std::string>>();
    skipped_seconds_ += expected;
  } else {
    const std::string text = task + ": " + run.family + (run.search ? ", search of the rate" : "") +
                             ", seed " + std::to_string(run.seed);
    const auto on_step = [&](std::int64_t step) {
      return tell(text + ", step " + std::to_string(step) + " of " + std::to_string(run.steps),
                  expected * static_cast<double>(step) / static_cast<double>(run.steps));
    };
    const auto at_end = [&](SequenceModel& model) {
      if (pictured) entry.result.pictures = pictures_of(run.family, model, data, device_);
    };
    result =
        run_compared(run, entry.result.model, settings_, data, entry.operations, device_, on_step, at_end);
    if (!result) return std::nullopt;
    fs::create_directories(file.parent_path());
    const fs::path partial = file.string() + ".partial";
    write_file_synced(
        partial,
        json{{"result", *result}, {"pictures", pictured ? entry.result.pictures : std::vector<std::string>{}}}
            .dump());
    fs::rename(partial, file);
  }
  done_seconds_ += expected;
  return result;
}

std::optional<std::vector<Comparison>> CompareRuns::run(const std::function<void(const std::string&)>& show,
                                                        const std::function<bool()>& stopped) {
  show_ = show, stopped_ = stopped;
  show_("measuring the models");
  std::vector<std::unique_ptr<Dataset>> data;
  std::vector<std::vector<Entry>> plans;
  const auto searched = [&](std::int64_t steps) {
    return std::max<std::int64_t>(1, std::llround(static_cast<double>(steps) * settings_.search_share));
  };
  for (DataSettings& task : tasks_) {
    settings_.training.data = task;
    data.push_back(make_dataset(settings_.training));
    plans.push_back(plan(*data.back()));
    for (const Entry& entry : plans.back())
      all_seconds_ +=
          entry.seconds * static_cast<double>(searched(entry.steps) * std::ssize(settings_.learning_rates) +
                                              entry.steps * settings_.seeds);
  }
  started_ = now();
  std::vector<Comparison> comparisons;
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    settings_.training.data = tasks_[i];
    Comparison comparison{tasks_[i].name(), data[i]->description(), data[i]->chance(), {}};
    for (Entry& entry : plans[i]) {
      ComparedRun best{entry.result.name, 0, 1, searched(entry.steps), true};
      for (const double rate : settings_.learning_rates) {
        best.learning_rate = rate;
        const auto result = result_of(comparison.task, entry, best, *data[i]);
        if (!result) return std::nullopt;
        entry.result.searches.push_back(*result);
      }
      best = std::ranges::min_element(entry.result.searches, {}, [](const ComparedResult& r) {
               return std::isfinite(r.loss) ? r.loss : std::numeric_limits<double>::infinity();
             })->run;
      best.search = false;
      best.steps = entry.steps;
      for (best.seed = 1; best.seed <= settings_.seeds; ++best.seed) {
        const auto result = result_of(comparison.task, entry, best, *data[i]);
        if (!result) return std::nullopt;
        entry.result.runs.push_back(*result);
      }
      comparison.families.push_back(entry.result);
    }
    comparisons.push_back(std::move(comparison));
  }
  return comparisons;
}

fs::path CompareRuns::write_report(const std::vector<Comparison>& tasks, const std::string& command) const {
  const fs::path file = folder_ / "report.html";
  write_file_synced(file, comparison_html(tasks, {settings_, device_.name() + ": " + device_->description(),
                                                  command, present_time()}));
  return file;
}

}  // namespace needle
