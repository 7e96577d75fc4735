// `needle evaluate`: the loss of a checkpoint on a file.
#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/options.h"
#include "apps/saved_model.h"
#include "apps/terminal.h"
#include "needle/data/masking.h"
#include "needle/data/sources.h"

namespace needle {

namespace {

struct EvaluateOptions {
  std::string checkpoint, lines, text;
  std::int64_t batch = 64, context = 0;
  ComputeOptions compute;
  bool json = false;
};

/// The whole file, by the vocabulary of the model.
std::vector<Batch> batches_of(const EvaluateOptions& options, const SavedModel& saved) {
  const std::int64_t most = saved.settings.model.context,
                     context = options.context > 0 ? options.context : most;
  require(context <= most, "evaluate: --context ", context, " is more than the ", most,
          " positions that the model reads");
  if (options.text.empty())
    return batches_of_lines(options.lines, saved.tokenizer, {.context = context}, options.batch);
  return batches_of_text(options.text, saved.tokenizer, context, options.batch);
}

void run_evaluation(const EvaluateOptions& options) {
  require(options.lines.empty() != options.text.empty(), "evaluate: wants one of --lines and --text");
  const Device device = use(options.compute);
  SavedModel saved = load_saved_model(options.checkpoint, device);
  std::vector<Batch> batches = batches_of(options, saved);
  if (saved.settings.model.kind == ModelKind::encoder) {
    const Generator random(static_cast<std::uint64_t>(saved.settings.seed));
    for (std::size_t i = 0; i < batches.size(); ++i) {
      batches[i] = mask_tokens(std::move(batches[i]),
                               {.mask_id = saved.tokenizer.vocabulary_size(),
                                .fraction = saved.settings.mask_fraction,
                                .spared_id = kBeginId},
                               random, static_cast<std::int64_t>(i) * options.batch);
    }
  }
  const Evaluation result = evaluate(*saved.model, batches, device);
  if (options.json) {
    const nlohmann::json object{{"checkpoint", saved.folder.string()}, {"file", options.lines + options.text},
                                {"targets", result.targets},           {"loss", result.loss},
                                {"accuracy", result.tokens.share()},   {"perplexity", std::exp(result.loss)}};
    print_json(object);
    return;
  }
  print_row("checkpoint", saved.folder.string());
  print_row("file", options.lines + options.text + ", " + with_commas(result.targets) + " targets");
  print_row("loss", fixed(result.loss, 4) + " nats per target");
  print_row("perplexity", fixed(std::exp(result.loss), 3));
  print_row("accuracy", percent(result.tokens.share(), 1));
}

}  // namespace

void add_evaluate(CLI::App& program, Outcome&) {
  auto options = std::make_shared<EvaluateOptions>();
  CLI::App* command = program.add_subcommand("evaluate", "Show the loss of a checkpoint on a file");
  command->footer("Example: needle evaluate --checkpoint runs/names-1 --lines more_names.txt");
  command
      ->add_option("--checkpoint", options->checkpoint, "A run, one of its checkpoints, or a published one")
      ->type_name("DIR")
      ->required();
  command->add_option("--lines", options->lines, "A file, one line a row")->type_name("FILE");
  command->add_option("--text", options->text, "A file, windows of its text")->type_name("FILE");
  add_value(*command, "--batch", options->batch, "Examples of one pass");
  add_value(*command, "--context", options->context, "Positions of a window; 0: all that the model reads");
  add_compute_options(*command, options->compute);
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options] { run_evaluation(*options); });
}

}  // namespace needle
