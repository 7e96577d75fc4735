// `needle generate`: text from a checkpoint.
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/options.h"
#include "apps/saved_model.h"
#include "apps/terminal.h"
#include "apps/writing.h"

namespace needle {

namespace {

struct GenerateOptions {
  std::string checkpoint;
  WritingSettings writing;
  ComputeOptions compute;
  bool json = false;
};

void run_generation(const GenerateOptions& options) {
  const WritingSettings& writing = options.writing;
  require(writing.new_tokens >= 0, "generate: --new-tokens must be at least 0, got ", writing.new_tokens);
  require(writing.count >= 1, "generate: --count must be at least 1, got ", writing.count);
  const Device device = use(options.compute);
  SavedModel saved = load_saved_model(options.checkpoint, device);
  const DataSource source = saved.settings.data.source;
  for (const Writing& answer : write_texts(*saved.model, saved.tokenizer, source, writing, device)) {
    const std::string text = writing.prompt + answer.text;
    if (options.json)
      print_json({{"text", text}, {"ended", answer.ended}});
    else
      std::cout << text << std::endl;
  }
}

}  // namespace

void add_generate(CLI::App& program, Outcome&) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = program.add_subcommand("generate", "Write text with a checkpoint");
  command->footer("Example: needle generate --checkpoint runs/corpus-1 --prompt \"the wolves \" --count 5");
  command->add_option("--checkpoint", options->checkpoint, "A run, or one of its checkpoints")
      ->type_name("DIR")
      ->required();
  WritingSettings& writing = options->writing;
  command->add_option("--prompt", writing.prompt, "What the text begins with")->type_name("TEXT");
  add_value(*command, "--temperature", writing.temperature,
            "Below 1 bolder, above 1 wilder; 0: the likeliest");
  add_value(*command, "--new-tokens", writing.new_tokens,
            "Most tokens of a text; 0: all that fit the context");
  add_value(*command, "--count", writing.count, "Texts");
  add_value(*command, "--seed", writing.seed, "Of the random choices");
  add_compute_options(*command, options->compute);
  command->add_flag("--json", options->json, "Print one JSON object a text");
  command->callback([options] { run_generation(*options); });
}

}  // namespace needle
