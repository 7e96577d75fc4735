// `needle generate`: text from a checkpoint.
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/options.h"
#include "needle/generate/generator.h"
#include "needle/io/checkpoint.h"
#include "needle/train/trainer.h"

namespace needle {

namespace {

struct GenerateOptions {
  std::string checkpoint, prompt, device = "cpu";
  double temperature = 1;
  std::int64_t new_tokens = 0, count = 1, seed = 1;
  bool json = false;
};

void run_generation(const GenerateOptions& options) {
  require(options.count > 0, "generate: --count must be positive, got ", options.count);
  require(options.seed >= 0 && options.new_tokens >= 0,
          "generate: --seed and --new-tokens must not be negative");
  const Device device = device_of(options.device);
  const std::filesystem::path folder = find_checkpoint(options.checkpoint);
  const SavedRun run = load_saved_run(folder);
  Generator random(static_cast<std::uint64_t>(options.seed));
  Decoder model(run.settings.model, random, device);
  load_model(folder, model);

  std::vector<std::int64_t> prompt = run.tokenizer.encode(options.prompt, "the prompt");
  // A model of a stream has never seen BOS; one of rows begins with it.
  const bool stream = run.settings.data.source == DataSource::text;
  if (!stream) prompt.insert(prompt.begin(), kBeginId);
  require(!prompt.empty(), "generate: this model continues text; give it a --prompt");
  GenerateSettings settings;
  const std::int64_t room = model.context() - static_cast<std::int64_t>(prompt.size()) + 1;
  settings.new_tokens = options.new_tokens > 0 ? options.new_tokens : std::max<std::int64_t>(room, 1);
  settings.end = kEndId;
  settings.pad = kPadId;
  settings.sampler = {options.temperature, run.tokenizer.vocabulary_size()};
  StreamingDecoder stream_out(run.tokenizer);
  const bool streaming = options.count == 1 && !options.json;
  if (streaming) {
    std::cout << options.prompt;
    settings.on_token = [&](std::int64_t, std::int64_t id) {
      std::cout << stream_out.push(id) << std::flush;
    };
  }
  const std::vector<std::vector<std::int64_t>> prompts(static_cast<std::size_t>(options.count), prompt);
  const auto answers = generate(model, prompts, settings, random, device);
  if (streaming) {
    std::cout << stream_out.finish() << std::endl;
    return;
  }
  for (const auto& answer : answers) {
    const bool ended = !answer.empty() && answer.back() == kEndId;
    if (options.json) {
      std::cout << nlohmann::json{{"text", options.prompt + run.tokenizer.decode(answer)},
                                  {"ids", answer},
                                  {"end", ended ? "eos" : "length"}}
                       .dump()
                << '\n';
    } else {
      std::cout << options.prompt << run.tokenizer.decode(answer) << '\n';
    }
  }
  std::cout << std::flush;
}

}  // namespace

void add_generate(CLI::App& program, Outcome&) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = program.add_subcommand("generate", "Text from a checkpoint");
  command->footer("Example: needle generate --checkpoint runs/corpus-1 --prompt \"the wolf\" --count 5");
  command->add_option("--checkpoint", options->checkpoint, "A run, or one of its checkpoints")
      ->required()
      ->type_name("DIR");
  command->add_option("--prompt", options->prompt, "What the text begins with")->type_name("TEXT");
  add_value(*command, "--temperature", options->temperature,
            "Below 1 bolder, above 1 wilder; 0: always the likeliest");
  add_value(*command, "--new-tokens", options->new_tokens,
            "Most tokens to add; 0: as many as fit the context");
  add_value(*command, "--count", options->count, "How many texts");
  add_value(*command, "--seed", options->seed, "Of the random choices");
  add_value(*command, "--device", options->device, "Where to compute");
  command->add_flag("--json", options->json, "Print one JSON object a text");
  command->callback([options] { run_generation(*options); });
}

}  // namespace needle
