// `needle evaluate`: the loss of a checkpoint on a file.
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/options.h"
#include "apps/terminal.h"
#include "needle/io/checkpoint.h"
#include "needle/io/files.h"
#include "needle/train/trainer.h"

namespace needle {

namespace {

struct EvaluateOptions {
  std::string checkpoint, lines, text, device = "cpu";
  std::int64_t batch = 32;
  bool json = false;
};

/// The whole file as batches, in order.
std::vector<Batch> batches_of(const EvaluateOptions& options, const SavedRun& run) {
  const std::string& file = options.lines.empty() ? options.text : options.lines;
  const std::string content = read_text(file);
  const std::int64_t context = run.settings.model.context;
  std::vector<Batch> batches;
  if (!options.text.empty()) {
    const std::vector<std::int64_t> tokens = run.tokenizer.encode(content, file);
    std::vector<std::int64_t> starts;
    for (std::int64_t start = 0; start + context < static_cast<std::int64_t>(tokens.size()); start += context)
      starts.push_back(start);
    require(!starts.empty(), file, ": has ", tokens.size(), " tokens, a window wants ", context + 1);
    for (std::size_t i = 0; i < starts.size(); i += static_cast<std::size_t>(options.batch)) {
      const std::size_t count = std::min(static_cast<std::size_t>(options.batch), starts.size() - i);
      batches.push_back(make_stream_batch(tokens, {starts.data() + i, count}, context));
    }
    return batches;
  }
  RowFormat format;
  format.context = context;
  std::vector<TokenRow> rows;
  const auto flush = [&] {
    if (!rows.empty()) batches.push_back(make_rows_batch(rows, format));
    rows.clear();
  };
  std::istringstream stream(content);
  for (std::string line; std::getline(stream, line);) {
    if (line.empty()) continue;
    rows.push_back(run.tokenizer.encode(line, file));
    if (static_cast<std::int64_t>(rows.size()) == options.batch) flush();
  }
  flush();
  require(!batches.empty(), file, ": has no lines");
  return batches;
}

void run_evaluation(const EvaluateOptions& options) {
  require(options.lines.empty() != options.text.empty(),
          "evaluate: wants either --lines FILE or --text FILE");
  require(options.batch > 0, "evaluate: --batch must be positive, got ", options.batch);
  const Device device = device_of(options.device);
  const std::filesystem::path folder = find_checkpoint(options.checkpoint);
  const SavedRun run = load_saved_run(folder);
  Generator unused(0);
  Decoder model(run.settings.model, unused, device);
  load_model(folder, model);
  const Evaluation result = evaluate(model, batches_of(options, run), -100, device);
  if (options.json) {
    std::cout << nlohmann::json{{"loss", result.loss},
                                {"perplexity", std::exp(result.loss)},
                                {"targets", result.targets},
                                {"checkpoint", folder.string()}}
                     .dump()
              << std::endl;
    return;
  }
  std::cout << "checkpoint   " << folder.string() << '\n'
            << "loss         " << fixed(result.loss, 4) << " nats per target\n"
            << "perplexity   " << fixed(std::exp(result.loss), 4) << '\n'
            << "targets      " << with_commas(result.targets) << std::endl;
}

}  // namespace

void add_evaluate(CLI::App& program, Outcome&) {
  auto options = std::make_shared<EvaluateOptions>();
  CLI::App* command = program.add_subcommand("evaluate", "The loss of a checkpoint on a file");
  command->footer("Example: needle evaluate --checkpoint runs/lines-1 --lines more_names.txt");
  command->add_option("--checkpoint", options->checkpoint, "A run, or one of its checkpoints")
      ->required()
      ->type_name("DIR");
  command->add_option("--lines", options->lines, "One line a row")->type_name("FILE");
  command->add_option("--text", options->text, "Windows of a text")->type_name("FILE");
  add_value(*command, "--batch", options->batch, "Examples of one pass");
  add_value(*command, "--device", options->device, "Where to compute");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options] { run_evaluation(*options); });
}

}  // namespace needle
