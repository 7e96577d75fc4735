// `needle train`: options, then the run itself.
#include <algorithm>
#include <memory>
#include <string_view>

#include "apps/command.h"
#include "apps/interrupt.h"
#include "apps/model_options.h"
#include "apps/options.h"
#include "apps/train_run.h"

namespace needle {

namespace {

void add_data_options(CLI::App& command, TrainOptions& options) {
  ChoiceNames<DataSource> built_in = names_of(DataSource{});
  std::erase_if(built_in, [](const auto& named) { return is_file(named.second); });
  add_choice(command, "--task", options.settings.data.source, "Train on built-in data", built_in)
      ->group("Data");
  add_value(command, "--distance", options.settings.data.distance,
            "How far back copy, recall and brackets ask, in positions; 0: 24")
      ->group("Data");
  command.add_option("--lines", options.lines, "Train on a file, one line a row")
      ->type_name("FILE")
      ->group("Data");
  command.add_option("--text", options.text, "Train on windows of a file's text")
      ->type_name("FILE")
      ->group("Data");
  ChoiceNames<Tokenizer::Kind> made = names_of(Tokenizer::Kind{});  // of the file itself
  std::erase_if(made, [](const auto& named) {
    return named.second != Tokenizer::Kind::bytes && named.second != Tokenizer::Kind::characters;
  });
  add_choice(command, "--tokens", options.settings.data.tokens, "What a token of the file is", made)
      ->group("Data");
  add_value(command, "--validation", options.settings.data.validation,
            "Share of the file that is kept for validation")
      ->group("Data");
}

void add_training_options(CLI::App& command, TrainOptions& options) {
  TrainSettings& s = options.settings;
  const auto value = [&](const char* name, auto& target, const char* help) {
    add_value(command, name, target, help)->group("Training");
  };
  add_choice(command, "--optimizer", s.optimizer, "Optimizer")->group("Training");
  value("--steps", s.steps, "Optimizer steps");
  value("--batch", s.batch, "Examples of one pass");
  value("--accumulate", s.accumulate, "Passes of one step");
  value("--learning-rate", s.learning_rate, "Highest learning rate");
  value("--final-learning-rate", s.final_learning_rate, "Learning rate at the end");
  value("--warmup", s.warmup, "Steps over which the learning rate rises");
  add_choice(command, "--decay", s.decay, "How the learning rate falls")->group("Training");
  command.add_option("--betas", options.betas, "Decay rates of Adam's two moments")
      ->expected(2)
      ->default_str(std::to_string(s.beta1).substr(0, 3) + " " + std::to_string(s.beta2).substr(0, 4))
      ->group("Training");
  value("--momentum", s.momentum, "Of sgd");
  value("--weight-decay", s.weight_decay, "Decay of matrices; vectors do not decay");
  value("--clip", s.clip, "Limit of the gradient's norm; 0: none");
  value("--label-smoothing", s.label_smoothing, "Share of each target spread over all tokens");
  add_choice(command, "--precision", s.precision,
             "Operands of products, and activations between them; sums, norms, losses and parameters are f32")
      ->group("Training");
  command
      .add_flag("--half-residual", s.half_residual,
                "With --precision bf16 or f16: keep the residual stream in it too; less memory, fewer digits")
      ->group("Training");
  value("--mask-fraction", s.mask_fraction, "Share of the tokens that an encoder has to tell");
  value("--seed", s.seed, "Of all random numbers");
  value("--evaluate-every", s.evaluate_every, "Steps between validations");
  value("--save-every", s.save_every, "Steps between checkpoints");
}

void add_run_options(CLI::App& command, TrainOptions& options) {
  const auto folder = [&](const char* name, std::string& target, const char* help) {
    command.add_option(name, target, help)->type_name("DIR")->group("Run");
  };
  const auto flag = [&](const char* name, bool& target, const char* help) {
    command.add_flag(name, target, help)->group("Run");
  };
  add_compute_options(command, options.compute, "Run");
  flag("--strict", options.settings.model.strict, "A real position that may read nothing is an error");
  flag("--anomaly", options.anomaly, "Name the first operation that makes a NaN or infinity; slower");
  flag("--graph", options.graph, "On cuda: record a step once and replay it, which spares the host's work");
  add_value(
      command, "--watch", options.watch,
      "Every so many steps, measure gradients, updates, activations and attention by layer, for `needle "
      "inside`; 0: never")
      ->group("Run");
  folder("--out", options.out,
         "Folder of the run [runs/<data>-<n>, the next free n]; with --resume, of a new run that goes on "
         "from there");
  folder("--from", options.from,
         "Begin with the weights and tokens of this run, checkpoint or published folder (config.json and "
         "model.safetensors), on data of your own");
  folder("--resume", options.resume, "Go on with the run in this folder, as if it had never stopped");
  flag("--overwrite", options.overwrite, "Replace the run that --out holds");
  flag("--json", options.json, "Print one JSON object a line");
}

/// A run that goes on keeps its settings; only its file may have moved, and how it is computed and shown.
void refuse_changes(const CLI::App& command) {
  constexpr std::string_view kFree[] = {"--lines",  "--text",    "--device", "--threads",  "--gemm",
                                        "--strict", "--anomaly", "--graph",  "--watch",    "--resume",
                                        "--json",   "--help",    "--out",    "--overwrite"};
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    require(option->count() == 0 || std::ranges::find(kFree, name) != std::end(kFree), "train: ", name,
            " can't be given with --resume; the run keeps its settings");
  }
}

}  // namespace

void add_train(CLI::App& program, Outcome&) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* command = program.add_subcommand("train", "Train a sequence model and show the result");
  command->footer("Example: needle train --lines names.txt --layers 2 --width 64 --steps 3000");
  add_data_options(*command, *options);
  add_model_options(*command, options->settings.model);
  command->get_option("--context")
      ->description("Most positions that are read; a task's default is its longest row");
  add_training_options(*command, *options);
  add_run_options(*command, *options);
  command->callback([options, command] {
    for (const char* name : {"--lines", "--text", "--out", "--resume", "--from"}) {
      require(command->count(name) == 0 || !command->get_option(name)->as<std::string>().empty(),
              "train: ", name, " must not be empty");
    }
    require(!options->overwrite || !options->out.empty(), "train: --overwrite wants --out");
    require(command->count("--task") + command->count("--lines") + command->count("--text") <= 1,
            "train: --task, --lines and --text exclude each other");
    options->context_given = command->count("--context") > 0;
    if (!options->resume.empty()) refuse_changes(*command);
    if (!options->from.empty()) {
      require(command->count("--lines") + command->count("--text") == 1,
              "train: --from wants --lines or --text, the data to go on with");
      require(command->count("--tokens") == 0,
              "train: --tokens can't be given with --from, whose tokens stay");
    }
    for (const CLI::Option* option : command->get_options()) {
      if (option->get_group() == "Model" && option->count() > 0)
        options->model_given.push_back(option->get_name().substr(2));
    }
    stop_at_interrupt("\nstopping after this step; once more ends at once, without saving\n");
    run_training(*options, [] { return interrupted(); });
  });
}

}  // namespace needle
