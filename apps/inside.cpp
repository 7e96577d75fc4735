// `needle inside`: one training step, looked into.
#include <algorithm>
#include <charconv>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/inside_table.h"
#include "apps/inside_training.h"
#include "apps/model_options.h"
#include "apps/saved_model.h"
#include "apps/terminal.h"
#include "apps/writing.h"
#include "needle/data/rows.h"
#include "needle/inspect/boundary.h"
#include "needle/inspect/inside.h"
#include "needle/inspect/tape_levels.h"
#include "needle/io/files.h"
#include "needle/models/model.h"
#include "needle/ops/elementwise.h"
#include "needle/ops/reduce.h"
#include "needle/optim/optimizer.h"
#include "needle/precision.h"

namespace needle {

namespace {

struct InsideOptions {
  ModelConfig model = DecoderConfig::of_size(16, 64, 32, 2, 4);
  std::string checkpoint, text, source, html, dot, trace;
  std::vector<std::string> entries;
  std::int64_t batch = 2, length = 16, seed = 1;
  int depth = 0, followed = 12;
  DType precision = DType::f32;
  ComputeOptions compute;
  bool precision_given = false, second = false, json = false;
  InsideSettings record;
};

/// "NAME:3,17".
std::pair<std::string, std::vector<std::int64_t>> entry_of(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  std::pair<std::string, std::vector<std::int64_t>> entry{text.substr(0, colon), {}};
  const std::string indices = colon == std::string::npos ? "" : text.substr(colon + 1);
  const char* at = indices.data();
  const char* const end = at + indices.size();
  while (at != end) {
    std::int64_t index = 0;
    const auto [next, error] = std::from_chars(at, end, index);
    const bool last = next == end, goes_on = !last && *next == ',' && next + 1 != end;
    require(error == std::errc() && (last || goes_on), "inside: --entry wants NAME:INDEX,INDEX, got '", text,
            "'");
    entry.second.push_back(index);
    at = last ? next : next + 1;
  }
  return entry;
}

/// A model with what it reads and should say.
struct Scene {
  std::unique_ptr<SequenceModel> model;
  SequenceInput input;
  NDArray labels;
};

/// The same in another type, on the CPU.
Scene copy_of(const Scene& scene, DType dtype, Device device) {
  Generator random(1);
  Scene copy{make_model(scene.model->config(), random, device, dtype), {}, scene.labels.to(device)};
  const std::vector<Parameter> from = scene.model->state();
  std::vector<Parameter> to = copy.model->state();
  for (std::size_t i = 0; i < from.size(); ++i)
    to[i].tensor.set_array(from[i].tensor.array().to(device).cast(dtype).copy());
  const auto moved = [&](const NDArray& array) { return array.defined() ? array.to(device) : array; };
  const SequenceInput& input = scene.input;
  copy.input = {moved(input.ids),        moved(input.real),        moved(input.positions),
                moved(input.source_ids), moved(input.source_real), moved(input.features)};
  if (copy.input.features.defined()) copy.input.features = copy.input.features.cast(dtype);
  return copy;
}

NDArray row_of(const std::vector<std::int64_t>& ids, Device device) {
  return NDArray::from(ids, {1, std::ssize(ids)}, device);
}

/// The labels of a random batch: any token, one a state.
NDArray random_labels(SequenceModel& model, const SequenceInput& input, Generator& random, Device device) {
  const NoGrad off;
  const Shape shape = model.states(model.embed(input, {}), input, {}).shape();
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < shape.count() / shape.at(-1); ++i)
    labels.push_back(random.below(model.vocabulary_size()));
  return NDArray::from(labels, {shape[0], shape[1]}, device);
}

Scene scene_of(InsideOptions& options, Device device) {
  Scene scene;
  Generator random(static_cast<std::uint64_t>(options.seed));
  std::optional<SavedModel> saved;
  if (options.checkpoint.empty()) {
    ModelConfig config = options.model;
    if (config.kind == ModelKind::patches) config.features = 8;  // any width serves
    scene.model = make_model(config, random, device);
  } else {
    saved = load_saved_model(options.checkpoint, device);
    scene.model = std::move(saved->model);
    if (!options.precision_given) options.precision = saved->settings.precision;
  }
  const ModelConfig& config = scene.model->config();
  if (options.text.empty()) {
    const std::int64_t room = scene.model->context();
    scene.input = random_input(config, room > 0 ? std::min(room, options.length) : options.length, random,
                               device, options.batch);
    scene.labels = random_labels(*scene.model, scene.input, random, device);
    return scene;
  }
  require(saved.has_value(), "inside: --text is read by the tokens of a run; give its --checkpoint");
  require(config.kind != ModelKind::patches, "inside: --text is for models that read tokens, not patches");
  const bool translates = config.kind == ModelKind::encoder_decoder;
  require(translates != options.source.empty(), "inside: --source is ",
          translates ? "what an encoder-decoder translates; it is missing" : "for an encoder-decoder alone");
  const std::vector<std::int64_t> ids =
      prompt_ids(saved->tokenizer, saved->settings.data.source, options.text);
  const std::int64_t room = scene.model->context();
  require(room == 0 || std::ssize(ids) <= room, "inside: ", ids.size(), " tokens do not fit the context of ",
          room);
  std::vector<std::int64_t> labels = ids;
  if (claims_causality(config)) {  // the next one
    std::ranges::rotate(labels, labels.begin() + 1);
    labels.back() = RowFormat().ignore_index;
  }
  scene.input.ids = row_of(ids, device);
  if (translates)
    scene.input.source_ids = row_of(saved->tokenizer.encode(options.source, "the source"), device);
  scene.labels = row_of(labels, device);
  return scene;
}

Tensor loss_of(Scene& scene) {
  Generator draws(1);
  return scene.model->loss(scene.input, scene.labels, {}, {true, &draws});
}

std::vector<Tensor> tensors_of(const std::vector<Parameter>& parameters) {
  std::vector<Tensor> tensors;
  for (const Parameter& parameter : parameters) tensors.push_back(parameter.tensor);
  return tensors;
}

/// Half the squared norm of the gradient of `loss`: its gradient is the Hessian times the gradient.
Tensor half_squared_norm(const Tensor& loss, const std::vector<Parameter>& parameters) {
  Tensor total;
  for (const Tensor& gradient : gradients(loss, tensors_of(parameters), {}, true)) {
    const Tensor part = sum(gradient * gradient) * 0.5;
    total = total.defined() ? total + part : part;
  }
  return total;
}

/// The forward pass, with what --second differentiates.
Tensor start_of_walk(const InsideOptions& options, Scene& scene, const std::vector<Parameter>& parameters,
                     TapeWatch* watch) {
  const Tensor loss = loss_of(scene);
  if (!options.second) return loss;
  if (watch) watch->begin_part("gradient");
  const Tensor start = half_squared_norm(loss, parameters);
  if (watch) watch->begin_part("");
  return start;
}

std::vector<NDArray> arrays_of(const std::vector<Parameter>& parameters) {
  std::vector<NDArray> arrays;
  for (const Parameter& parameter : parameters) arrays.push_back(parameter.tensor.array());
  return arrays;
}

std::vector<NDArray> batch_of(const Scene& scene) {
  const SequenceInput& input = scene.input;
  std::vector<NDArray> batch;
  for (const NDArray& array : {input.ids, input.real, input.positions, input.source_ids, input.source_real,
                               input.features, scene.labels}) {
    if (array.defined()) batch.push_back(array);
  }
  return batch;
}

/// A step that leaves what it took behind, the second one of two: the first fills the memory pool.
Tape watched_step(const InsideOptions& options, Scene& scene, Device device) {
  const std::vector<Parameter> parameters = scene.model->parameters();
  Adam optimizer(groups_by_rank(parameters, 0.1), AdamDecay::decoupled);
  const auto step = [&](TapeWatch* watch) {
    const ObserverScope scope(watch);
    start_of_walk(options, scene, parameters, watch).backward();
    // What a step costs, and every parameter stays as it is; what is not finite, clip() keeps away from them.
    optimizer.set_learning_rate(0);
    optimizer.clip({});
    optimizer.step();
  };
  step(nullptr);
  optimizer.clear_gradients();
  device->synchronize();
  TapeWatch watch(device, parameters,
                  {{"parameters", arrays_of(parameters)},
                   {"moments", arrays_of(optimizer.state())},
                   {"batch", batch_of(scene)}});
  step(&watch);
  Tape tape = watch.finish();
  optimizer.clear_gradients();
  return tape;
}

/// Why the step's numbers cannot all be held in double precision, or nothing.
std::string too_large(const Tape& tape) {
  double numbers = 0;
  for (const TapeTensor& tensor : tape.tensors) numbers += static_cast<double>(tensor.shape.count());
  // Values and gradients, and as much again on the way.
  const double wanted = 4 * numbers * static_cast<double>(size_of(DType::f64)),
               free = static_cast<double>(cpu()->free_memory());
  if (wanted < free / 2) return "";
  return "the numbers of this step would take about " + megabytes(wanted) + " in double precision, and " +
         megabytes(free) + " are free; a smaller --batch or --length wants less";
}

/// The same step again with every array kept: the numbers are of that. In double precision, or where products
/// are of 16 bits, as it was.
struct Repeated {
  Repeated(const InsideOptions& options, const Scene& scene)
      : exact(options.precision == DType::f32 ? copy_of(scene, DType::f64, cpu())
                                              : copy_of(scene, DType::f32, scene.labels.device())) {
    const PrecisionScope precision(options.precision);
    const ObserverScope scope(&keeper);
    start = start_of_walk(options, exact, exact.model->parameters(), nullptr);
  }
  Scene exact;
  ArrayKeeper keeper;
  Tensor start;
};

std::string title_of(const InsideOptions& options, const Scene& scene) {
  const ModelConfig& config = scene.model->config();
  const Shape shape = scene.labels.shape();
  return name_of_choice(config.kind) + " · " + std::to_string(config.layers) +
         (config.layers == 1 ? " layer" : " layers") + " · width " + std::to_string(config.width) +
         " · batch " + std::to_string(shape[0]) + " × " + std::to_string(shape.at(-1)) +
         (options.second ? " · second order" : "");
}

void run_inside(InsideOptions options, const Outcome& outcome) {
  const Device device = use(options.compute);
  Scene scene = scene_of(options, device);
  const Tape tape = [&] {
    const PrecisionScope precision(options.precision);
    return watched_step(options, scene, device);
  }();
  levels_of(tape, options.record.only, 1 << 20);  // throws where there is no such module
  // Whatever cannot be made or written is said before anything is printed.
  nlohmann::json shown;
  if (!options.html.empty() || options.json) {
    const std::vector<Parameter> parameters = scene.model->parameters();
    InsideOrigin origin;
    origin.title = title_of(options, scene);
    origin.command = outcome.command;
    origin.device = device.name();
    origin.machine = device->description();
    origin.order = options.second ? 2 : 1;
    origin.dtype = options.precision;
    origin.numbers_dtype = options.precision == DType::f32 ? DType::f64 : DType::f32;
    for (const Parameter& parameter : parameters) {
      origin.parameters += parameter.tensor.array().count();
      origin.parameter_bytes += parameter.tensor.array().bytes();
    }
    origin.gradient_bytes = origin.parameter_bytes;
    origin.moment_bytes = 2 * origin.parameter_bytes;
    std::string unknown = too_large(tape);
    std::optional<Repeated> again;
    if (unknown.empty()) again.emplace(options, scene);
    std::optional<TapeValues> values;
    try {
      if (again) values.emplace(tape, again->start, &again->keeper);
    } catch (const Error& error) {
      unknown = error.what();
    }
    options.record.followed_parameters = options.followed;
    for (const std::string& entry : options.entries) options.record.entries.push_back(entry_of(entry));
    nlohmann::json record = inside_json(tape, values ? &*values : nullptr, unknown, origin, options.record);
    record["training"] = training_of(options.checkpoint);
    if (!options.html.empty()) write_file_synced(options.html, inside_page(record));
    if (options.json) shown = std::move(record);
  }
  if (!options.trace.empty()) write_trace(options.trace, profiled(tape));
  if (!options.dot.empty()) write_file_synced(options.dot, inside_dot(tape, options.record.only));
  if (options.json) return print_json(shown);
  print_row("step", title_of(options, scene));
  std::cout << '\n';
  print_tape(tape, options.depth, options.record.only);
  std::cout << '\n';
  print_times_and_memory(tape);
  for (const auto& [what, file] :
       {std::pair{"page", options.html}, {"graph", options.dot}, {"trace", options.trace}}) {
    if (!file.empty()) print_row(what, file);
  }
}

}  // namespace

void add_inside(CLI::App& program, Outcome& outcome) {
  auto options = std::make_shared<InsideOptions>();
  CLI::App* command = program.add_subcommand("inside",
                                             "Run one training step and show all of it: every op with its "
                                             "shapes, costs, time and what it keeps, the "
                                             "graph, the numbers, and how single numbers make the loss");
  command->footer("Example: needle inside --layers 2 --width 32 --html inside.html");
  command
      ->add_option(
          "--checkpoint", options->checkpoint,
          "A run, one of its checkpoints, or a published one; none: a new model by the options below")
      ->type_name("DIR");
  command->add_option("--text", options->text, "What the model of a checkpoint reads; none: random tokens")
      ->type_name("TEXT");
  command->add_option("--source", options->source, "What an encoder-decoder translates to it")
      ->type_name("TEXT");
  add_value(*command, "--batch", options->batch, "Rows of random tokens");
  add_value(*command, "--length", options->length,
            "Positions of a row; fewer where the model cannot read so many");
  add_value(*command, "--vocabulary", options->model.vocabulary, "Tokens that there are")->group("Model");
  add_value(*command, "--seed", options->seed, "Of parameters and tokens");
  add_value(*command, "--depth", options->depth, "Fold modules deeper than this in the table; 0: none");
  command->add_option("--only", options->record.only, "Show this module and what is in it")
      ->type_name("PATH");
  command->add_option("--html", options->html, "Write one page of everything, to be opened in a browser")
      ->type_name("FILE");
  command->add_option("--dot", options->dot, "Write the graph for Graphviz")->type_name("FILE");
  command->add_option("--trace", options->trace, "Write the times for Perfetto or chrome://tracing")
      ->type_name("FILE");
  add_value(*command, "--followed", options->followed,
            "Parameters of which one entry is followed to the loss, in page and JSON");
  command->add_option("--entry", options->entries, "Follow this entry, too: a tensor's name, and where in it")
      ->type_name("NAME:INDEX,INDEX");
  command->add_flag(
      "--second", options->second,
      "Look into the gradient of half the squared gradient norm: the graph of a gradient's gradient");
  command->add_flag("--json", options->json, "Print one JSON object of everything");
  add_choice(*command, "--precision", options->precision,
             "Operands of products, and activations between them; by default the checkpoint's");
  add_compute_options(*command, options->compute);
  add_model_options(*command, options->model);
  command->callback([options, command, &outcome] {
    const auto within = [](const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
      require(value >= least && value <= most, "inside: --", name, " must be ", least, " to ", most, ", got ",
              value);
    };
    within("batch", options->batch, 1, 4096);
    within("length", options->length, 1, 65536);
    within("depth", options->depth, 0, 100);
    within("followed", options->followed, 0, 1000);
    for (const CLI::Option* option : command->get_options()) {
      require(options->checkpoint.empty() || option->count() == 0 || option->get_group() != "Model",
              "inside: ", option->get_name(), " can't be given with --checkpoint");
    }
    options->precision_given = command->count("--precision") > 0;
    const bool numbers = !options->html.empty() || options->json;
    require(numbers || command->count("--entry") + command->count("--followed") == 0,
            "inside: --entry and --followed are of page and JSON; give --html or --json");
    require(options->source.empty() || !options->text.empty(),
            "inside: --source wants --text, its translation");
    require(options->text.empty() || command->count("--batch") + command->count("--length") == 0,
            "inside: --text is one row of its own length; leave out --batch and --length");
    if (command->count("--context") == 0)
      options->model.context = std::max(options->model.context, options->length);
    run_inside(*options, outcome);
  });
}

}  // namespace needle
