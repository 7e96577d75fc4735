// `needle compare`: families of models on one task after the other, under one budget.
#include <CLI/CLI.hpp>
#include <iostream>
#include <sstream>

#include "apps/command.h"
#include "apps/compare_runs.h"
#include "apps/interrupt.h"
#include "apps/options.h"
#include "apps/terminal.h"

namespace needle {

namespace {

struct CompareOptions {
  CompareSettings settings;
  std::vector<std::string> tasks{"recall"};
  std::string lines, text, out;
  ComputeOptions compute;
  bool json = false, tasks_given = false;
};

/// What a comparison trains with unless told otherwise.
CompareSettings default_settings() {
  CompareSettings settings;
  TrainSettings& training = settings.training;
  training.steps = 3500;
  training.batch = 32;
  training.data.distance = 0;
  training.model.heads = 4;
  training.model.positions = Positions::rotary;
  training.model.kernel = 3;
  // So narrow models learn sooner from larger weights.
  training.model.initialisation = Initialisation::uniform;
  training.model.tied = false;
  return settings;
}

void print_table(const Comparison& task) {
  print_row("task", task.task + ": " + task.data);
  if (task.chance) print_row("chance", percent(*task.chance, 1));
  std::cout << '\n';
  const auto cell = [](const std::string& text, int width) {
    std::cout << std::string(
                     static_cast<std::size_t>(std::max<int>(1, width - static_cast<int>(text.size()))), ' ')
              << text;
  };
  std::cout << "model      ";
  for (const auto& [title, width] : {std::pair("parameters", 11),
                                     {"kop/token", 10},
                                     {"path", 5},
                                     {"reads", 6},
                                     {"tokens/s", 9},
                                     {"peak MB", 8},
                                     {"rate", 7},
                                     {"loss", 8},
                                     {"+-", 7},
                                     {"accuracy", 9},
                                     {"+-", 6}})
    cell(title, width);
  std::cout << '\n';
  for (const ComparedFamily& family : task.families) {
    std::cout << family.name << std::string(std::max<std::size_t>(1, 11 - family.name.size()), ' ');
    double speed = 0;
    for (const ComparedResult& run : family.runs) {
      speed += run.tokens_per_second / static_cast<double>(family.runs.size());
    }
    std::ostringstream rate;
    rate << (family.runs.empty() ? 0 : family.runs[0].run.learning_rate);
    cell(with_commas(family.facts.parameters), 11);
    cell(fixed(family.facts.operations_per_token / 1e3, 0), 10);
    cell(family.facts.path ? std::to_string(*family.facts.path) : "none", 5);
    cell(reach_text(family.facts.receptive_field), 6);
    cell(with_commas(static_cast<std::int64_t>(speed)), 9);
    cell(fixed(family.peak_bytes() / 1e6, 1), 8);
    cell(rate.str(), 7);
    cell(fixed(family.loss().mean, 4), 8);
    cell(fixed(family.loss().deviation, 4), 7);
    cell(fixed(100 * family.accuracy().mean, 1) + " %", 9);
    cell(fixed(100 * family.accuracy().deviation, 1), 6);
    std::cout << '\n';
  }
  std::cout << "\noperations of a pass over one row\n";
  for (const ComparedFamily& family : task.families) {
    std::cout << family.name << std::string(std::max<std::size_t>(1, 11 - family.name.size()), ' ');
    for (const auto& [length, operations] : family.growth)
      cell(fixed(operations / 1e6, 1) + " M at " + std::to_string(length), 18);
    std::cout << '\n';
  }
  std::cout << std::flush;
}

void print_results(const Comparison& task) {
  for (const ComparedFamily& family : task.families) {
    nlohmann::json distances = nlohmann::json::array(), growth = nlohmann::json::array();
    for (const auto& [distance, share] : family.by_distance()) distances.push_back({distance, share});
    for (const auto& [length, operations] : family.growth) growth.push_back({length, operations});
    print_json({{"event", "family"},
                {"task", task.task},
                {"family", family.name},
                {"model", family.model},
                {"parameters", family.facts.parameters},
                {"operations_per_token", family.facts.operations_per_token},
                {"longest_path", family.facts.path ? nlohmann::json(*family.facts.path) : nlohmann::json()},
                {"receptive_field", family.facts.receptive_field},
                {"growth", growth},
                {"loss", family.loss().mean},
                {"loss_deviation", family.loss().deviation},
                {"accuracy", family.accuracy().mean},
                {"accuracy_deviation", family.accuracy().deviation},
                {"by_distance", distances},
                {"searches", family.searches},
                {"runs", family.runs}});
  }
}

void run_comparison(CompareOptions& options, const std::string& command) {
  CompareSettings& settings = options.settings;
  require(options.lines.empty() || options.text.empty(), "compare: --lines and --text exclude each other");
  require(!options.tasks_given || (options.lines.empty() && options.text.empty()),
          "compare: --tasks and a file exclude each other");
  std::vector<DataSettings> tasks;
  for (const std::string& name : options.tasks) {
    DataSettings data = settings.training.data;
    data.source = choice_of_name<DataSource>(name);
    require(!is_file(data.source), "compare: give a file by --lines or --text");
    require(data.source != DataSource::translation && data.source != DataSource::shapes, "compare: ", name,
            " has a model of its own kind");
    if (!is_task(data.source)) data.distance = 0;
    tasks.push_back(data);
  }
  for (const auto& [file, source] :
       {std::pair(options.lines, DataSource::lines), std::pair(options.text, DataSource::text)}) {
    if (file.empty()) continue;
    tasks = {settings.training.data};
    tasks[0].source = source, tasks[0].file = file, tasks[0].distance = 0;
  }
  require(!tasks.empty(), "compare: wants at least one task");
  settings.training.data = tasks.front();
  settings.validate();
  stop_at_interrupt("\nstopping; finished runs are kept. Once more ends at once\n");
  const Device device = use(options.compute);
  CompareRuns runs(settings, tasks, options.out, device);
  if (!options.json) {
    print_row("folder", runs.folder().string());
    print_row("computed by", device.name() + ": " + device->description());
  }
  LiveLine live;
  const std::optional<std::vector<Comparison>> result =
      runs.run([&](const std::string& line) { live.show(line); }, [] { return interrupted(); });
  live.clear();
  if (!result) {
    if (options.json)
      print_json({{"event", "stopped"}, {"folder", runs.folder().string()}});
    else
      std::cout << "stopped; go on with\n  " << command
                << (options.out.empty() ? " --out " + quoted(runs.folder().string()) : "") << std::endl;
    return;
  }
  const std::filesystem::path report = runs.write_report(*result, command);
  for (const Comparison& task : *result) options.json ? print_results(task) : print_table(task);
  if (options.json)
    print_json({{"event", "end"}, {"report", report.string()}});
  else
    print_row("report", report.string());
}

}  // namespace

void add_compare(CLI::App& program, Outcome& outcome) {
  auto options = std::make_shared<CompareOptions>();
  options->settings = default_settings();
  CompareSettings& s = options->settings;
  CLI::App* command =
      program.add_subcommand("compare", "Train families of models on one task and show how they differ");
  command->footer("Example: needle compare --tasks recall,copy --models lstm,dilated,attention --seeds 5");
  command->add_option("--tasks", options->tasks, "Tasks: corpus, copy, recall, brackets")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--lines", options->lines, "A file instead, one line a row")->type_name("FILE");
  command->add_option("--text", options->text, "A file instead, windows of its text")->type_name("FILE");
  add_value(*command, "--distance", s.training.data.distance,
            "How far back tasks ask; 0: the task's default");
  command->add_option("--models", s.models, "Families of models")->delimiter(',')->capture_default_str();
  add_value(*command, "--parameters", s.parameters, "Parameters of each model, within 5 %");
  add_value(*command, "--layers", s.layers,
            "Layers of each; 0: 2 recurrent, 3 of attention, convolutions to R = 13");
  add_value(*command, "--heads", s.training.model.heads, "Attention heads");
  add_value(*command, "--kernel", s.training.model.kernel, "Positions that a convolution reads");
  add_value(*command, "--context", s.training.model.context, "Most positions that are read, of files");
  add_choice(*command, "--budget", s.budget, "What is equal for all, beside the parameters");
  add_value(*command, "--steps", s.training.steps, "Steps of a run");
  add_value(*command, "--operations", s.operations,
            "Of a run, with that budget; 0: what --steps take on average over the models");
  add_value(*command, "--seconds", s.seconds, "Of a run, with that budget");
  add_value(*command, "--batch", s.training.batch, "Examples of a step");
  command->add_option("--learning-rates", s.learning_rates, "Tried for each model; the best is kept")
      ->delimiter(',')
      ->capture_default_str();
  add_value(*command, "--search-share", s.search_share, "Part of a run with which rates are tried");
  add_value(*command, "--seeds", s.seeds, "Runs of each model at the best rate");
  command
      ->add_option("--out", options->out,
                   "Folder [runs/compare-<n>, the next free n]; what it holds of this comparison is not "
                   "trained again")
      ->type_name("DIR");
  add_compute_options(*command, options->compute);
  command->add_flag("--json", options->json, "Print one JSON object a line");
  command->callback([options, command, &outcome] {
    options->tasks_given = command->count("--tasks") > 0;
    run_comparison(*options, outcome.command);
  });
}

}  // namespace needle
