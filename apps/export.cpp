// `needle export`: a checkpoint in the names that others publish.
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/options.h"
#include "apps/saved_model.h"
#include "apps/terminal.h"
#include "needle/io/files.h"
#include "needle/models/published.h"

namespace needle {

namespace {

namespace fs = std::filesystem;

struct ExportOptions {
  std::string checkpoint, to;
  bool json = false;
};

void run_export(const ExportOptions& options) {
  const fs::path to = options.to;
  require(!to.empty() && (!fs::exists(to) || (fs::is_directory(to) && fs::is_empty(to))),
          "export: --to wants a new folder, ", to.string(), " is there already");
  const SavedModel saved = load_saved_model(options.checkpoint, cpu());
  const bool llama = published_names_of(saved.settings.model) == PublishedNames::llama;
  PendingFolder pending(to);
  save_published(pending.path(), *saved.model, saved.tokenizer);
  pending.commit();

  const char* const names = llama ? "Llama" : "GPT-2";
  const bool text = saved.tokenizer.byte_pairs() != nullptr;
  if (options.json)
    return print_json({{"folder", to.string()}, {"names", llama ? "llama" : "gpt2"}, {"tokenizer", text}});
  print_row("checkpoint", saved.folder.string());
  print_row("exported", to.string() + ", in the names of " + names);
  const bool none = saved.tokenizer.kind() == Tokenizer::Kind::ids;
  print_row("tokens", text   ? "tokenizer.json"
                      : none ? "ids alone, as before"
                             : "ids alone; a tokenizer.json holds byte pairs, and these are " +
                                   name_of_choice(saved.tokenizer.kind()));
}

}  // namespace

void add_export(CLI::App& program, Outcome&) {
  auto options = std::make_shared<ExportOptions>();
  CLI::App* command = program.add_subcommand(
      "export", "Write a decoder's checkpoint in the published names of GPT-2 or Llama");
  command->footer("Example: needle export --checkpoint runs/corpus-1 --to published");
  command
      ->add_option("--checkpoint", options->checkpoint, "A run, one of its checkpoints, or a published one")
      ->type_name("DIR")
      ->required();
  command->add_option("--to", options->to, "The new folder")->type_name("FOLDER")->required();
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options] { run_export(*options); });
}

}  // namespace needle
