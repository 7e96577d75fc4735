// `needle cost`: what a model costs by formula, beside what a real pass counted.
#include <algorithm>
#include <memory>

#include "apps/command.h"
#include "apps/cost_report.h"
#include "apps/model_options.h"
#include "apps/saved_model.h"
#include "apps/terminal.h"
#include "needle/models/model.h"

namespace needle {

namespace {

/// Whether a pass takes seconds, and at most half of the free memory; `passes`: 3 with the backward pass.
bool is_small(const ModelConfig& config, const PassSizes& sizes, double passes, Device device) {
  constexpr double kMostOperations = 1e11;
  const double rows = static_cast<double>(sizes.batch * (sizes.time + sizes.source)),
               width = static_cast<double>(12 * config.width + 3 * config.ffn),
               numbers = 2 * static_cast<double>(config.parameter_count()) +
                         rows * (static_cast<double>(config.layers) * width +
                                 3 * static_cast<double>(config.vocabulary));
  return passes * operations_of(forward_cost(config, sizes)) < kMostOperations &&
         numbers * static_cast<double>(size_of(DType::f32)) < static_cast<double>(device->free_memory()) / 2;
}

bool can_go_on(const ModelConfig& config) { return !config.has_attention() || config.causal; }

Measured measure(const CostOptions& options, Device device) {
  Measured result;
  const ModelConfig& config = options.model;
  if (!is_small(config, options.sizes, 1, device)) return result;
  Generator random(1);
  const std::unique_ptr<SequenceModel> model = make_model(config, random, device);
  for (std::size_t i = 0; i < kGrowth.size(); ++i) {
    const PassSizes sizes = longer(options.sizes, kGrowth[i]);
    if (is_small(config, sizes, 1, device)) result.forward[i] = count_pass(*model, sizes, false, device);
  }
  if (is_small(config, options.sizes, 3, device))
    result.training = count_pass(*model, options.sizes, true, device);
  PassSizes all = options.sizes;
  all.time += options.new_tokens;
  if (can_go_on(config) && is_small(config, all, 4, device))  // token by token is slower
    result.decoding = count_decoding(*model, options.sizes, options.new_tokens - 1, device);
  return result;
}

/// `formula` is what it would be without a mask, `masked` with it.
CostRow row_of(const CostOptions& options, const std::string& name, double formula, double masked,
               std::optional<double> counted) {
  CostRow row{name, formula, counted, "", true};
  if (!counted) return row;
  row.explained = *counted == formula || *counted == masked;
  if (*counted == formula)
    row.difference = "equal";
  else
    row.difference =
        whole(*counted - formula) + ": " +
        (row.explained
             ? "the mask" + std::string(options.model.window > 0 ? " and the window allow " : " allows ") +
                   percent(masked, formula) + " of the pairs"
             : "NOT EXPLAINED");
  return row;
}

std::vector<CostRow> part_rows(const CostOptions& options, const Measured& measured) {
  std::vector<CostRow> rows;
  for (const PartCost& part : forward_cost(options.model, options.sizes)) {
    std::optional<double> counted;
    if (measured.forward[0]) counted = measured.forward[0]->forward(part.part);
    rows.push_back(row_of(options, part.part, part.unmasked, part.masked, counted));
  }
  return rows;
}

std::vector<CostRow> decoding_rows(const CostOptions& options, const Measured& measured) {
  if (!can_go_on(options.model)) return {};
  const std::int64_t steps = options.new_tokens - 1, past = options.sizes.time;
  std::optional<double> bytes, pairs;
  if (measured.decoding) {
    bytes = measured.decoding->bytes;
    pairs = measured.decoding->pairs;
  }
  const double remembered =
      state_bytes(options.model, {options.sizes.batch, past + steps, options.sizes.source});
  std::vector<CostRow> rows{row_of(options, "bytes remembered", remembered, remembered, bytes)};
  if (options.model.has_attention())
    rows.push_back(row_of(options, "pairs a layer and head", query_key_pairs(steps, past, true, 0),
                          query_key_pairs(steps, past, true, options.model.window), pairs));
  return rows;
}

void run_cost(CostOptions options, Outcome& outcome) {
  const auto at_least = [](const char* name, std::int64_t value, std::int64_t least) {
    constexpr std::int64_t kMost = 1 << 24;
    require(value >= least && value <= kMost, "cost: --", name, " must be from ", least, " to ", kMost,
            ", got ", value);
  };
  at_least("batch", options.sizes.batch, 1);
  at_least("length", options.sizes.time, 1);
  at_least("source", options.sizes.source, 0);
  at_least("new-tokens", options.new_tokens, 1);
  const bool reads_source = options.model.kind == ModelKind::encoder_decoder;
  require(reads_source || options.sizes.source == 0, "cost: --source is for an encoder-decoder, got a ",
          name_of_choice(options.model.kind));
  if (reads_source && options.sizes.source == 0) options.sizes.source = options.sizes.time;
  options.model.context =
      std::max({options.model.context, kGrowth.back() * std::max(options.sizes.time, options.sizes.source),
                options.sizes.time + options.new_tokens});
  options.model = options.model.resolved();
  const Device device = use(options.compute);
  const Measured measured = measure(options, device);
  const CostReport report{options, measured, part_rows(options, measured), decoding_rows(options, measured)};
  options.json ? print_cost_json(report) : print_cost(report);
  for (const std::vector<CostRow>& rows : {report.parts, report.decoding}) {
    for (const CostRow& row : rows) outcome.code |= !row.explained;
  }
}

}  // namespace

void add_cost(CLI::App& program, Outcome& outcome) {
  auto options = std::make_shared<CostOptions>();
  options->model.vocabulary = 256;
  options->model.features = 64;
  CLI::App* command = program.add_subcommand(
      "cost", "Show what a model costs by formula and as counted; exit code 1 where they differ unexplained");
  command->footer("Example: needle cost --model decoder --layers 2 --width 64 --batch 4 --length 128");
  command
      ->add_option(
          "--checkpoint", options->checkpoint,
          "The model of a run, of one of its checkpoints, or of a published one; none: by the options "
          "below")
      ->type_name("DIR");
  add_value(*command, "--batch", options->sizes.batch, "Rows");
  add_value(*command, "--length", options->sizes.time, "Positions T of a row; the context is raised to fit");
  add_value(*command, "--source", options->sizes.source,
            "Positions of an encoder-decoder's source; 0: as many as of a row");
  add_value(*command, "--new-tokens", options->new_tokens,
            "Tokens that are generated after the row, the first from its own pass");
  add_value(*command, "--vocabulary", options->model.vocabulary, "Tokens that there are")->group("Model");
  add_value(*command, "--features", options->model.features, "Numbers of a patch, for patches")
      ->group("Model");
  add_model_options(*command, options->model);
  add_compute_options(*command, options->compute);
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options, command, &outcome] {
    for (const CLI::Option* option : command->get_options()) {
      require(options->checkpoint.empty() || option->count() == 0 || option->get_group() != "Model",
              "cost: ", option->get_name(), " can't be given with --checkpoint");
    }
    if (!options->checkpoint.empty()) options->model = describe_saved(options->checkpoint).settings.model;
    run_cost(*options, outcome);
  });
}

}  // namespace needle
