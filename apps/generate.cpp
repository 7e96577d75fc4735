// `needle generate`: text from a checkpoint.
#include <cmath>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "apps/command.h"
#include "apps/generate_interactive.h"
#include "apps/generate_rows.h"
#include "apps/options.h"
#include "apps/terminal.h"
#include "needle/generate/names_of_choices.h"
#include "needle/generate/score.h"
#include "needle/io/files.h"

namespace needle {

namespace {

struct GenerateOptions {
  std::string checkpoint, prompt, prompt_file, score_file;
  std::vector<std::int64_t> prompt_ids;
  RowsSettings rows;
  DType storage = DType::f32;
  ComputeOptions compute;
  bool no_cache = false, no_end = false, interactive = false, int8 = false;
};

/// The lines of a file, or of standard input where it is called "-".
std::vector<std::string> lines_of(const std::string& file) {
  std::vector<std::string> lines;
  std::string line;
  if (file == "-") {
    while (std::getline(std::cin, line)) lines.push_back(line);
    return lines;
  }
  std::istringstream text(read_file(file));
  while (std::getline(text, line)) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    lines.push_back(line);
  }
  return lines;
}

std::vector<Prompt> prompts_of(const GenerateOptions& options, const SavedModel& saved) {
  if (!options.prompt_ids.empty()) {
    for (const std::int64_t id : options.prompt_ids) {
      require(id >= 0 && id < saved.settings.model.vocabulary, "generate: the ids of this model are 0 to ",
              saved.settings.model.vocabulary - 1, ", got ", id);
    }
    if (saved.tokenizer.kind() == Tokenizer::Kind::ids) return {{"", options.prompt_ids}};
    return {{saved.tokenizer.decode(options.prompt_ids), options.prompt_ids}};
  }
  if (options.prompt_file.empty()) return {prompt_of(saved, options.prompt)};
  std::vector<Prompt> prompts;
  const std::string name = options.prompt_file == "-" ? "standard input" : options.prompt_file;
  for (const std::string& line : lines_of(options.prompt_file))
    prompts.push_back(prompt_of(saved, line, name, std::ssize(prompts) + 1));
  require(!prompts.empty(), "generate: ", name, " holds no prompt; one line is one prompt");
  return prompts;
}

/// Log probability and perplexity of a file: of its lines where the model was trained on rows, else of its
/// text.
void run_score(const GenerateOptions& options, SavedModel& saved, Device device) {
  const bool by_line = saved.settings.data.source != DataSource::text;
  std::vector<std::string> texts;
  if (by_line)
    texts = lines_of(options.score_file);
  else
    texts.push_back(read_file(options.score_file));
  std::vector<TokenRow> rows;
  for (const std::string& text : texts) {
    TokenRow ids = saved.tokenizer.encode(text, options.score_file);
    if (by_line) {
      const auto begin = saved.tokenizer.begin_id(), end = saved.tokenizer.end_id();
      require(begin && end, "generate: this vocabulary has no tokens that begin and end a line");
      ids.insert(ids.begin(), *begin);
      ids.push_back(*end);
    }
    rows.push_back(std::move(ids));
  }
  double exact = 0;  // by the weights as they were trained
  if (options.int8) {
    for (const std::vector<double>& of_row : score(*saved.model, rows, device))
      exact += std::accumulate(of_row.begin(), of_row.end(), 0.0);
    quantize_weights(*saved.model);
  }
  const auto scores = score(*saved.model, rows, device);
  double total = 0;
  std::int64_t tokens = 0;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    double of_row = 0;
    for (const double log : scores[row]) of_row += log;
    total += of_row;
    tokens += std::ssize(scores[row]);
    if (options.rows.json && by_line) {
      print_json({{"line", row + 1},
                  {"text", texts[row]},
                  {"tokens", scores[row].size()},
                  {"log_probability", of_row},
                  {"log_probabilities", scores[row]}});
    }
  }
  require(tokens > 0, "generate: ", options.score_file, " holds no token that others precede");
  const double perplexity = std::exp(-total / static_cast<double>(tokens));
  const double of_exact = std::exp(-exact / static_cast<double>(tokens));
  if (options.rows.json) {
    nlohmann::json object{{"file", options.score_file},
                          {"tokens", tokens},
                          {"log_probability", total},
                          {"perplexity", perplexity}};
    if (!by_line) object["log_probabilities"] = scores[0];
    if (options.int8) object["perplexity_f32"] = of_exact;
    print_json(object);
    return;
  }
  print_row("file", options.score_file + (by_line ? ", " + with_commas(std::ssize(rows)) + " lines" : ""));
  print_row("tokens", with_commas(tokens) + (by_line ? ", the ends of lines included" : " after the first"));
  print_row("log P",
            fixed(total, 3) + " nats in all, " + fixed(total / static_cast<double>(tokens), 4) + " a token");
  print_row("perplexity", fixed(perplexity, 4) + " a token");
  if (options.int8) {
    print_row("by f32", fixed(of_exact, 4) + "; weights of 8 bits change it by " +
                            fixed(100 * (perplexity / of_exact - 1), 3) + " %");
  }
}

void run_generation(const GenerateOptions& options) {
  RowsSettings settings = options.rows;
  require(settings.new_tokens >= 0, "generate: --new-tokens must be at least 0, got ", settings.new_tokens);
  require(settings.count >= 1, "generate: --count must be at least 1, got ", settings.count);
  require(settings.rows >= 1, "generate: --batch must be at least 1, got ", settings.rows);
  require(settings.beams >= 0, "generate: --beams must be at least 0, got ", settings.beams);
  require(settings.alternatives >= 0, "generate: --alternatives must be at least 0, got ",
          settings.alternatives);
  check(settings.sampler);
  require(settings.beams == 0 || (settings.count == 1 && settings.stops.empty()),
          "generate: a beam search finds its own texts; leave out --count and --stop");
  const int sources = !options.prompt.empty() + !options.prompt_file.empty() + !options.prompt_ids.empty() +
                      !options.score_file.empty() + options.interactive;
  require(sources <= 1,
          "generate: wants one of --prompt, --prompt-file, --prompt-ids, --score and --interactive");
  const Device device = use(options.compute);
  SavedModel saved = load_saved_model(options.checkpoint, device);
  settings.decoding.cache = !options.no_cache;
  settings.decoding.storage = options.storage;
  settings.ends = !options.no_end;
  if (!options.score_file.empty()) return run_score(options, saved, device);
  if (options.int8) quantize_weights(*saved.model);
  if (options.interactive) return write_interactively(saved, settings, device);
  write_rows(saved, prompts_of(options, saved), settings, device);
}

}  // namespace

void add_generate(CLI::App& program, Outcome&) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = program.add_subcommand("generate", "Write text with a checkpoint, or score text");
  command->footer(
      "Example: needle generate --checkpoint runs/corpus-1 --prompt \"the wolves \" --count 5 --top-p 0.9");
  RowsSettings& rows = options->rows;
  const char* what = "What";
  command
      ->add_option("--checkpoint", options->checkpoint, "A run, one of its checkpoints, or a published one")
      ->type_name("DIR")
      ->required()
      ->group(what);
  command->add_option("--prompt", options->prompt, "What the text begins with, or what is translated")
      ->type_name("TEXT")
      ->group(what);
  command->add_option("--prompt-file", options->prompt_file, "Prompts, one a line; -: of standard input")
      ->type_name("FILE")
      ->group(what);
  command->add_option("--prompt-ids", options->prompt_ids, "A prompt as token ids: 5,7,2")
      ->delimiter(',')
      ->type_name("INT")
      ->group(what);
  command->add_flag("--interactive", options->interactive, "Ask for prompts, with a history")->group(what);
  command->add_option("--score", options->score_file, "Tell what the model gives this text; writes none")
      ->type_name("FILE")
      ->group(what);
  add_value(*command, "--count", rows.count, "Texts of each prompt")->group(what);
  add_value(*command, "--new-tokens", rows.new_tokens, "Most tokens of a text; 0: as many as the context has")
      ->group(what);
  command->add_option("--stop", rows.stops, "Ends a text before this string; may be given again")
      ->type_name("TEXT")
      ->group(what);
  command->add_flag("--no-end", options->no_end, "Go on past the end token")->group(what);

  const char* how = "How a token is chosen";
  add_value(*command, "--temperature", rows.sampler.temperature,
            "Below 1 bolder, above 1 wilder; 0: the likeliest")
      ->group(how);
  add_value(*command, "--top-k", rows.sampler.top_k, "Of so many of the likeliest; 0: of all")->group(how);
  add_value(*command, "--top-p", rows.sampler.top_p, "Of the likeliest that together reach this chance")
      ->group(how);
  add_value(*command, "--min-p", rows.sampler.min_p,
            "Of those at least so likely as this part of the likeliest")
      ->group(how);
  add_value(*command, "--repetition-penalty", rows.sampler.repetition_penalty,
            "Above 1: tokens that the text holds become less likely")
      ->group(how);
  add_value(*command, "--seed", rows.seed, "Of the random choices")->group(how);
  add_value(*command, "--beams", rows.beams, "Search the likeliest texts, so many at once; 0: draw")
      ->group(how);
  add_value(*command, "--length-penalty", rows.length_penalty, "Of that search: above 0 prefers longer texts")
      ->group(how);

  const char* computing = "Computing";
  add_choice(*command, "--overflow", rows.decoding.overflow, "Once the context is full")->group(computing);
  command->add_flag("--no-cache", options->no_cache, "Read the whole text again for each token")
      ->group(computing);
  add_choice(*command, "--cache", options->storage, "Type of the keys and values that are kept")
      ->group(computing);
  command->add_flag("--int8", options->int8, "Weights of maps in 8 bits: faster, and nearly the same")
      ->group(computing);
  add_value(*command, "--chunk", rows.decoding.chunk, "Positions of one pass over a prompt; 0: all")
      ->group(computing);
  add_choice(*command, "--padding", rows.decoding.padding, "Where shorter prompts of a batch are filled up")
      ->group(computing);
  add_value(*command, "--batch", rows.rows, "Texts of one batch")->group(computing);
  add_compute_options(*command, options->compute, computing);
  add_value(*command, "--alternatives", rows.alternatives,
            "With --json: so many of the likeliest at each token")
      ->group(computing);
  command->add_flag("--json", rows.json, "Print one JSON object a text")->group(computing);
  command->callback([options] { run_generation(*options); });
}

}  // namespace needle
