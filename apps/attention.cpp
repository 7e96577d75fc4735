// `needle attention`: which tokens a head looks at.
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/command.h"
#include "apps/options.h"
#include "apps/saved_model.h"
#include "apps/terminal.h"
#include "apps/writing.h"
#include "needle/data/utf8.h"
#include "needle/inspect/attention_weights.h"
#include "needle/inspect/svg_text.h"
#include "needle/io/files.h"

namespace needle {

namespace {

struct AttentionCommandOptions {
  std::string checkpoint, text, source, svg;
  std::int64_t layer = 0, head = 0;
  ComputeOptions compute;
  bool json = false;
};

/// What stands on an axis for a token.
std::string token_label(const Tokenizer& tokenizer, std::int64_t id) {
  if (const auto name = tokenizer.special_name(id)) return printable(*name);
  const std::string text = tokenizer.decode_bytes(std::vector{id});
  if (text == " ") return "␣";
  if (text == "\n") return "⏎";
  if (text == "\t") return "⇥";
  if (repair_utf8(text) == text) return printable(text);
  std::ostringstream bytes;  // a part of a character
  for (const char byte : text)
    bytes << std::hex << std::uppercase << static_cast<int>(static_cast<unsigned char>(byte));
  return bytes.str();
}

/// Numbers as far as they fit a line, else shades; what is masked is a dot.
std::string table_of(const HeatMap& picture) {
  constexpr std::size_t kMostNumbers = 16, kCell = 6, kMargin = 9;
  const std::size_t columns = picture.column_labels.size();
  if (columns > kMostNumbers) return heat_map_text(picture);
  const auto cell = [](const std::string& text, std::size_t width) {
    return std::string(width - std::min(width, character_count(text)), ' ') + text;
  };
  std::string table = cell("query\\key", kMargin);
  for (const std::string& label : picture.column_labels) table += cell(label, kCell);
  for (std::size_t row = 0; row < picture.row_labels.size(); ++row) {
    table += '\n' + cell(picture.row_labels[row], kMargin);
    for (std::size_t column = 0; column < columns; ++column) {
      const double weight = picture.values[row * columns + column];
      table += cell(weight == 0 ? "·" : fixed(weight, 3), kCell);
    }
  }
  return table + '\n';
}

nlohmann::json json_of(const HeatMap& picture, const std::string& path, std::int64_t head) {
  nlohmann::json weights = nlohmann::json::array();
  const auto columns = static_cast<std::ptrdiff_t>(picture.column_labels.size());
  for (auto row = picture.values.begin(); row != picture.values.end(); row += columns)
    weights.push_back(std::vector<double>(row, row + columns));
  return {{"layer", path},
          {"head", head},
          {"queries", picture.row_labels},
          {"keys", picture.column_labels},
          {"weights", weights}};
}

NDArray one_row(const std::vector<std::int64_t>& ids, const SequenceModel& model, Device device) {
  const std::int64_t count = std::ssize(ids), context = model.context();
  require(count > 0, "attention: there is no token to read");
  require(context == 0 || count <= context, "attention: ", count, " tokens do not fit the context of ",
          context);
  return NDArray::from(ids, {1, count}, device);
}

std::vector<std::string> labels_of(const Tokenizer& tokenizer, const std::vector<std::int64_t>& ids) {
  std::vector<std::string> labels;
  for (const std::int64_t id : ids) labels.push_back(token_label(tokenizer, id));
  return labels;
}

void run_attention(const AttentionCommandOptions& options) {
  const Device device = use(options.compute);
  const SavedModel saved = load_saved_model(options.checkpoint, device);
  SequenceModel& model = *saved.model;
  const bool translates = model.config().kind == ModelKind::encoder_decoder;
  require(translates == !options.source.empty(), "attention: --source is ",
          translates ? "what an encoder-decoder translates; it is missing" : "for an encoder-decoder alone");
  const std::vector<std::int64_t> ids = prompt_ids(saved.tokenizer, saved.settings.data.source, options.text);
  const std::vector<std::int64_t> source_ids = saved.tokenizer.encode(options.source, "the source");
  SequenceInput input{one_row(ids, model, device), {}, {}};
  if (translates) input.source_ids = one_row(source_ids, model, device);

  const std::vector<LayerWeights> layers = attention_weights_of(model, input, options.layer);
  const LayerWeights& layer = layers[static_cast<std::size_t>(options.layer)];
  const std::vector<std::string> text = labels_of(saved.tokenizer, ids),
                                 source = labels_of(saved.tokenizer, source_ids);
  const bool encodes = translates && layer.path.starts_with("encoder.");
  const bool crosses = translates && layer.path.ends_with(".cross");
  const HeatMap picture =
      attention_picture(layer, 0, options.head, encodes ? source : text, encodes || crosses ? source : text);
  if (!options.svg.empty()) write_file_synced(options.svg, draw_heat_map(picture));
  if (options.json) return print_json(json_of(picture, layer.path, options.head));
  std::cout << "layer " << options.layer << " of " << layers.size() << ", " << picture.title << " of "
            << layer.weights.size(1) << '\n'
            << table_of(picture);
  if (!options.svg.empty()) std::cout << "picture: " << printable(options.svg) << '\n';
}

}  // namespace

void add_attention(CLI::App& program, Outcome&) {
  auto options = std::make_shared<AttentionCommandOptions>();
  CLI::App* command =
      program.add_subcommand("attention", "Which tokens of a text an attention head looks at");
  command->footer(
      "Example: needle attention --checkpoint runs/corpus-1 --text \"the wolves\" --layer 1 --svg head.svg");
  command
      ->add_option("--checkpoint", options->checkpoint, "A run, one of its checkpoints, or a published one")
      ->type_name("DIR")
      ->required();
  command->add_option("--text", options->text, "What the model reads")->type_name("TEXT")->required();
  command->add_option("--source", options->source, "What an encoder-decoder translates to it")
      ->type_name("TEXT");
  add_value(*command, "--layer", options->layer, "Which attention, counted from 0 as they run");
  add_value(*command, "--head", options->head, "Which of its heads, counted from 0");
  command->add_option("--svg", options->svg, "Write the heat map to a file, too")->type_name("FILE");
  command->add_flag("--json", options->json, "Print one JSON object");
  add_compute_options(*command, options->compute);
  command->callback([options] { run_attention(*options); });
}

}  // namespace needle
