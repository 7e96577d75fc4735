// `needle decoder`: a small decoder on a toy batch, and four checks of what a decoder must do (S41).
#include <cmath>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/options.h"
#include "apps/terminal.h"
#include "needle/anomaly.h"
#include "needle/data/tokenizer.h"
#include "needle/inspect/agreement.h"
#include "needle/train/trainer.h"

namespace needle {

namespace {

struct DecoderOptions {
  std::int64_t seed = 1;
  ComputeOptions compute;
  bool json = false;
};

/// What one check found.
struct CheckResult {
  std::string name;
  std::string detail;
  bool passed;
};

constexpr double kBound = 1e-5;      // of the relative error of float32 logits
constexpr double kLossBound = 0.15;  // around the loss of a guess among all tokens

DecoderConfig toy_config() { return DecoderConfig::of_size(16, 8, 32, 2, 4); }

/// Two rows of three and one letters: with their ends, four and two targets.
std::vector<TokenRow> toy_rows() { return {{7, 3, 11}, {5}}; }

Batch batch_of(const std::vector<TokenRow>& rows) {
  RowFormat format;
  format.context = toy_config().context;
  format.width_multiple = 1;
  return make_rows_batch(rows, format);
}

SequenceInput input_of_ids(const std::vector<std::int64_t>& ids, Device device) {
  return {NDArray::from(ids, {1, std::ssize(ids)}, device), {}, {}};
}

std::string error_text(double error) {
  std::ostringstream text;
  text << "relative error " << std::setprecision(1) << std::scientific << error;
  return text.str();
}

CheckResult check_future(Decoder& model, Device device) {
  const std::vector<std::int64_t> ids{kBeginId, 7, 3, 11, 9, 4};
  const NDArray before = model.forward(input_of_ids(ids, device)).array();
  bool passed = true;
  for (std::size_t last = 1; last < ids.size(); ++last) {
    std::vector<std::int64_t> other = ids;
    for (std::size_t t = last; t < ids.size(); ++t) other[t] = (other[t] + 5) % 16;
    const NDArray after = model.forward(input_of_ids(other, device)).array();
    const std::int64_t prefix = static_cast<std::int64_t>(last);
    passed = passed && relative_error(after.slice(1, 0, prefix), before.slice(1, 0, prefix)) == 0 &&
             relative_error(after.slice(1, prefix, prefix + 1), before.slice(1, prefix, prefix + 1)) > 0;
  }
  return {"future tokens leave the logits before them fixed", "bit-identical", passed};
}

CheckResult check_cache(Decoder& model, Device device) {
  const std::vector<std::int64_t> ids{kBeginId, 7, 3, 11, 9, 4};
  const NDArray full = model.forward(input_of_ids(ids, device)).array();
  Cache cache = model.empty_state(1, std::ssize(ids));
  const Pass pass{false, nullptr, &cache};
  double worst = 0;
  for (std::size_t t = 0; t < ids.size(); ++t) {
    const NDArray step = model.forward(input_of_ids({ids[t]}, device), pass).array();
    const std::int64_t place = static_cast<std::int64_t>(t);
    worst = std::max(worst, relative_error(step, full.slice(1, place, place + 1)));
  }
  return {"cached token-by-token logits equal the full ones", error_text(worst), worst <= kBound};
}

CheckResult check_padding(Decoder& model, Device device) {
  const std::vector<TokenRow> rows = toy_rows();
  const NDArray together = model.forward(input_of(batch_of(rows), device)).array();
  double worst = 0;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const NDArray alone = model.forward(input_of(batch_of({rows[row]}), device)).array();
    const NDArray real = together[static_cast<std::int64_t>(row)].slice(0, 0, alone.size(1));
    worst = std::max(worst, relative_error(real, alone[0]));
  }
  return {"rows of a right-padded batch equal the rows alone", error_text(worst), worst <= kBound};
}

CheckResult check_gradients(Decoder& model, const Tensor& loss) {
  loss.backward();
  std::int64_t finite = 0, all = 0;
  for (const Parameter& parameter : model.parameters()) {
    ++all;
    const NDArray& gradient = parameter.tensor.grad();
    finite += gradient.defined() && gradient.shape() == parameter.tensor.shape() && all_finite(gradient);
  }
  return {"the loss gives every parameter a finite gradient",
          std::to_string(finite) + " of " + std::to_string(all) + " parameters", finite == all};
}

int run_decoder(const DecoderOptions& options) {
  const Device device = use(options.compute);
  Generator random(static_cast<std::uint64_t>(options.seed));
  Decoder model(toy_config(), random, device);
  const Batch batch = batch_of(toy_rows());
  const Tensor loss = model.loss(input_of(batch, device), labels_of(batch, device));
  const double guess = std::log(static_cast<double>(model.vocabulary_size()));

  std::vector<CheckResult> checks;
  {
    const NoGrad off;
    checks = {check_future(model, device), check_cache(model, device), check_padding(model, device)};
  }
  checks.push_back(check_gradients(model, loss));
  const bool near_guess = std::abs(loss.item() - guess) <= kLossBound;
  bool passed = near_guess;
  for (const CheckResult& check : checks) passed = passed && check.passed;

  if (options.json) {
    nlohmann::json rows = nlohmann::json::array();
    for (const CheckResult& check : checks)
      rows.push_back({{"check", check.name}, {"detail", check.detail}, {"passed", check.passed}});
    print_json({{"loss", loss.item()},
                {"targets", batch.valid_targets},
                {"parameters", model.parameter_count()},
                {"checks", rows},
                {"passed", passed}});
    return passed ? 0 : 1;
  }
  std::cout << "decoder   " << model.config().layers << " layers, width " << model.config().width << ", "
            << model.config().heads << " heads, " << model.vocabulary_size() << " tokens, "
            << with_commas(model.parameter_count()) << " parameters\n"
            << "loss      " << fixed(loss.item(), 4) << " nats over " << batch.valid_targets << " targets, "
            << (near_guess ? "within " : "NOT WITHIN ") << kLossBound
            << " of a guess: ln 16 = " << fixed(guess, 4) << '\n';
  for (const CheckResult& check : checks)
    std::cout << (check.passed ? "pass      " : "FAIL      ") << check.name << " (" << check.detail << ")\n";
  std::cout.flush();
  return passed ? 0 : 1;
}

}  // namespace

void add_decoder(CLI::App& program, Outcome& outcome) {
  auto options = std::make_shared<DecoderOptions>();
  CLI::App* command =
      program.add_subcommand("decoder", "A small decoder, and four checks of what a decoder must do");
  command->footer("Example: needle decoder --seed 2");
  add_value(*command, "--seed", options->seed, "Of the parameters");
  add_compute_options(*command, options->compute);
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options, &outcome] { outcome.code = run_decoder(*options); });
}

}  // namespace needle
