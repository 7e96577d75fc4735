// `needle check`: which outputs of a model read which inputs.
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/model_options.h"
#include "apps/saved_model.h"
#include "apps/terminal.h"
#include "needle/inspect/boundary.h"
#include "needle/io/files.h"
#include "needle/models/model.h"

namespace needle {

namespace {

struct CheckOptions {
  ModelConfig model = DecoderConfig::of_size(16, 64, 32, 2, 4);
  std::string checkpoint, svg;
  std::int64_t length = 16, seed = 1;
  ComputeOptions compute;
  bool length_given = false, json = false;
};

std::unique_ptr<SequenceModel> model_of(const CheckOptions& options, Device device) {
  if (!options.checkpoint.empty()) return load_saved_model(options.checkpoint, device).model;
  Generator random(static_cast<std::uint64_t>(options.seed));
  ModelConfig config = options.model;
  if (config.kind == ModelKind::patches) config.features = 8;  // any width serves
  return make_model(config, random, device);
}

std::string joined(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const std::int64_t number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return text;
}

std::string name_of_model(const ModelConfig& config) {
  const auto counted = [](std::int64_t count, const char* what) {
    return ", " + std::to_string(count) + ' ' + what + (count == 1 ? "" : "s");
  };
  std::string name = name_of_choice(config.kind) + counted(config.layers, "layer") + ", width " +
                     std::to_string(config.width);
  if (config.has_attention()) name += counted(config.heads, "head");
  if (config.has_attention() && config.window > 0) name += ", window " + std::to_string(config.window);
  if (config.kind == ModelKind::convolution)
    name += ", kernel " + std::to_string(config.kernel) + ", dilations " + joined(config.dilations);
  return name;
}

/// In words; positions count from 1.
std::string verdict_of(const Boundary& boundary) {
  if (const auto pair = boundary.offence()) {
    return "reads the future: output " + std::to_string(pair->output + 1) + " reads input " +
           std::to_string(pair->input + 1);
  }
  if (const auto output = boundary.blind())
    return "output " + std::to_string(*output + 1) + " reads neither itself nor anything before it";
  return "causal: no position reads the future";
}

std::string reach_of(const Boundary& boundary, const ModelConfig& config) {
  const std::int64_t field = config.receptive_field();
  return "the last position reads " + std::to_string(boundary.distances().size()) + " of " +
         std::to_string(boundary.length) + " positions, over a span of " + std::to_string(boundary.span()) +
         "; by formula " + (field == 0 ? "everything before it" : "a span of " + std::to_string(field));
}

nlohmann::json json_of(const Boundary& boundary, const ModelConfig& config) {
  nlohmann::json reads = nlohmann::json::array(), sizes = nlohmann::json::array();
  for (std::int64_t i = 0; i < boundary.length; ++i) {
    nlohmann::json row = nlohmann::json::array(), row_sizes = nlohmann::json::array();
    for (std::int64_t j = 0; j < boundary.length; ++j) {
      row.push_back(boundary.reads(i, j) ? 1 : 0);
      row_sizes.push_back(boundary.gradient[static_cast<std::size_t>(i * boundary.length + j)]);
    }
    reads.push_back(row);
    sizes.push_back(row_sizes);
  }
  nlohmann::json first_change = nlohmann::json::array();
  for (const std::int64_t output : boundary.first_change) {
    if (output < boundary.length)
      first_change.push_back(output + 1);
    else
      first_change.push_back(nullptr);
  }
  nlohmann::json json{{"model", config},
                      {"length", boundary.length},
                      {"causal", boundary.causal()},
                      {"claims_causality", claims_causality(config)},
                      {"offence", nullptr},
                      {"span", boundary.span()},
                      {"distances", boundary.distances()},
                      {"holes", boundary.holes()},
                      {"receptive_field", config.receptive_field()},
                      {"reads", reads},
                      {"gradient", sizes},
                      {"first_change", first_change}};
  if (const auto pair = boundary.offence())
    json["offence"] = {{"output", pair->output + 1}, {"input", pair->input + 1}};
  return json;
}

int run_check(const CheckOptions& options) {
  const Device device = use(options.compute);
  const std::unique_ptr<SequenceModel> model = model_of(options, device);
  const ModelConfig& config = model->config();
  Generator random(static_cast<std::uint64_t>(options.seed));
  const std::int64_t room = model->context();
  const std::int64_t length =
      options.length_given || room == 0 ? options.length : std::min(options.length, room);
  const SequenceInput input = random_input(config, length, random, device);
  const Boundary boundary = measure_boundary(*model, input, random);
  const bool broken = claims_causality(config) && !boundary.causal();
  const HeatMap picture = boundary_picture(boundary, "Who reads whom: " + name_of_model(config));
  if (!options.svg.empty()) write_file_synced(options.svg, draw_heat_map(picture));
  if (options.json) {
    print_json(json_of(boundary, config));
    return broken ? 1 : 0;
  }
  print_row("model", name_of_model(config));
  print_row("verdict", verdict_of(boundary));
  if (broken) print_row("", "such a model must be causal, and this one is not");
  print_row("reach", reach_of(boundary, config));
  if (!boundary.holes().empty()) print_row("holes", joined(boundary.holes()) + " positions back");
  std::cout << '\n' << heat_map_text(picture);
  if (!options.svg.empty()) std::cout << '\n' << "picture: " << printable(options.svg) << '\n';
  return broken ? 1 : 0;
}

}  // namespace

void add_check(CLI::App& program, Outcome& outcome) {
  auto options = std::make_shared<CheckOptions>();
  CLI::App* command = program.add_subcommand(
      "check",
      "Which outputs of a model read which inputs: by gradient, and by changing the input. Positions count "
      "from 1. Exit code 1 where a model that must not read the future does");
  command->footer("Example: needle check --model decoder --layers 2 --window 3 --length 12");
  command
      ->add_option(
          "--checkpoint", options->checkpoint,
          "A run, one of its checkpoints, or a published one; none: a new model by the options below")
      ->type_name("DIR");
  add_value(*command, "--length", options->length,
            "Positions; by default fewer where the model cannot read so many");
  add_value(*command, "--seed", options->seed, "Of parameters and inputs");
  command->add_option("--svg", options->svg, "Write the picture to a file, too")->type_name("FILE");
  command->add_flag("--json", options->json, "Print one JSON object");
  add_compute_options(*command, options->compute);
  add_model_options(*command, options->model);
  command->callback([options, command, &outcome] {
    require(options->length >= 1 && options->length <= 512, "check: --length must be 1 to 512, got ",
            options->length);
    for (const CLI::Option* option : command->get_options()) {
      require(options->checkpoint.empty() || option->count() == 0 || option->get_group() != "Model",
              "check: ", option->get_name(), " can't be given with --checkpoint");
    }
    options->length_given = command->count("--length") > 0;
    if (command->count("--context") == 0)
      options->model.context = std::max(options->model.context, options->length);
    outcome.code = run_check(*options);
  });
}

}  // namespace needle
