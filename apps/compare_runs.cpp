#include "apps/compare_runs.h"

#include <algorithm>
#include <cmath>
#include <ctime>

#include "apps/terminal.h"
#include "backends/clock.h"
#include "needle/inspect/attention_weights.h"
#include "needle/inspect/boundary.h"
#include "needle/threads.h"
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

/// Writes a file that is there whole or not at all.
void write_whole(const fs::path& file, const json& value) {
  const fs::path partial = file.string() + ".partial";
  write_file_synced(partial, value.dump() + "\n");
  fs::rename(partial, file);
}

/// What an earlier comparison kept of a run; nothing where the file is damaged.
std::optional<std::pair<ComparedResult, std::vector<std::string>>> kept_result(const fs::path& file) {
  if (!fs::exists(file)) return std::nullopt;
  try {
    const json kept = parse_json(read_file(file), file.string());
    return std::pair(kept.at("result").get<ComparedResult>(),
                     kept.at("pictures").get<std::vector<std::string>>());
  } catch (const json::exception&) {
    return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
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
  wanted.erase("training");
  wanted["device"] = device_.name();
  wanted["threads"] = threads();
  wanted["tasks"] = json::array();
  for (const DataSettings& task : tasks_) {
    settings_.training.data = task;
    data_.push_back(make_dataset(settings_.training));
    json training = settings_.training;
    for (const char* name : {"learning_rate", "final_learning_rate"})
      training.erase(name);  // each run has its own
    wanted["tasks"].push_back(
        {{"name", task.name()}, {"training", training}, {"hash", data_.back()->hash()}});
  }
  all_settings_ = wanted;
  const fs::path file = folder_ / "settings.json";
  fs::create_directories(folder_);
  lock_.emplace(folder_);
  if (fs::exists(file)) {
    const json found = parse_json(read_file(file), file.string());
    require(
        found == parse_json(wanted.dump(), "settings"), folder_.string(),
        ": holds a comparison with other settings or data, or one computed elsewhere; give another --out");
  } else {
    write_file_synced(file, wanted.dump(1) + "\n");
  }
}

std::vector<CompareRuns::Entry> CompareRuns::plan(const std::string& task, Dataset& data) {
  const fs::path file = folder_ / "runs" / task / "plan.json";
  const json known = fs::exists(file) ? parse_json(read_file(file), file.string()) : json::object();
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
    if (known.contains(name))
      entry.cost = {known[name].at("seconds"), known[name].at("operations")};
    else
      entry.cost = measure_step(entry.result.model, settings_, data, device_);
    mean_operations += entry.cost.operations / static_cast<double>(settings_.models.size());
    entries.push_back(std::move(entry));
  }
  json planned = json::object();
  for (Entry& entry : entries) {
    double steps = static_cast<double>(settings_.training.steps);
    if (settings_.budget == Budget::seconds) steps = settings_.seconds / entry.cost.seconds;
    if (settings_.budget == Budget::operations)
      steps =
          (settings_.operations > 0 ? settings_.operations : steps * mean_operations) / entry.cost.operations;
    constexpr double kMostSteps = 1e12;
    entry.steps = std::max<std::int64_t>(1, std::llround(std::min(steps, kMostSteps)));
    planned[entry.result.name] = {{"seconds", entry.cost.seconds}, {"operations", entry.cost.operations}};
  }
  fs::create_directories(file.parent_path());
  write_whole(file, planned);
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
  const double expected = entry.cost.seconds * static_cast<double>(run.steps);
  const bool pictured = !run.search && run.seed == 1;
  std::optional<ComparedResult> result;
  if (const auto kept = kept_result(file)) {
    result = kept->first;
    if (pictured) entry.result.pictures = kept->second;
    skipped_seconds_ += expected;
  } else {
    const std::string text = task + ": " + run.family + (run.search ? ", search of the rate" : "") +
                             ", seed " + std::to_string(run.seed);
    const auto on_step = [&](std::int64_t step) {
      return tell(text + ", step " + std::to_string(step) + " of " + std::to_string(run.steps),
                  expected * static_cast<double>(step) / static_cast<double>(run.steps));
    };
    const auto at_end = [&](SequenceModel& model) {
      try {
        if (pictured) entry.result.pictures = pictures_of(run.family, model, data, device_);
      } catch (const Error&) {  // of a model that has diverged; its figures still count
        entry.result.pictures.clear();
      }
    };
    result = run_compared(run, entry.result.model, settings_, data, entry.cost.operations, device_, on_step,
                          at_end);
    if (!result) return std::nullopt;
    write_whole(file, {{"result", *result},
                       {"pictures", pictured ? entry.result.pictures : std::vector<std::string>{}}});
  }
  done_seconds_ += expected;
  return result;
}

std::optional<std::vector<Comparison>> CompareRuns::run(const std::function<void(const std::string&)>& show,
                                                        const std::function<bool()>& stopped) {
  show_ = show, stopped_ = stopped;
  show_("measuring the models");
  std::vector<std::vector<Entry>> plans;
  const auto searched = [&](std::int64_t steps) {
    return std::max<std::int64_t>(1, std::llround(static_cast<double>(steps) * settings_.search_share));
  };
  // One rate needs no search.
  const auto searches = std::ssize(settings_.learning_rates) > 1 ? std::ssize(settings_.learning_rates) : 0;
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    settings_.training.data = tasks_[i];
    plans.push_back(plan(tasks_[i].name(), *data_[i]));
    for (const Entry& entry : plans.back())
      all_seconds_ += entry.cost.seconds *
                      static_cast<double>(searched(entry.steps) * searches + entry.steps * settings_.seeds);
  }
  started_ = now();
  std::vector<Comparison> comparisons;
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    settings_.training.data = tasks_[i];
    Comparison comparison{tasks_[i].name(), data_[i]->description(), data_[i]->chance(), {}};
    for (Entry& entry : plans[i]) {
      ComparedRun best{entry.result.name, settings_.learning_rates.front(), 1, searched(entry.steps), true};
      for (const double rate : settings_.learning_rates) {
        if (searches == 0) break;
        best.learning_rate = rate;
        const auto result = result_of(comparison.task, entry, best, *data_[i]);
        if (!result) return std::nullopt;
        entry.result.searches.push_back(*result);
      }
      if (searches > 0) {
        best = std::ranges::min_element(entry.result.searches, {}, [](const ComparedResult& r) {
                 return std::isfinite(r.loss) ? r.loss : std::numeric_limits<double>::infinity();
               })->run;
      }
      best.search = false;
      best.steps = entry.steps;
      for (best.seed = 1; best.seed <= settings_.seeds; ++best.seed) {
        const auto result = result_of(comparison.task, entry, best, *data_[i]);
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
  write_file_synced(
      file, comparison_html(tasks, {settings_, all_settings_, device_.name() + ": " + device_->description(),
                                    command, present_time()}));
  return file;
}

}  // namespace needle
