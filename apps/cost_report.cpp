#include "apps/cost_report.h"

#include <cmath>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/terminal.h"
#include "needle/models/names_of_choices.h"

namespace needle {

PassSizes longer(PassSizes sizes, std::int64_t times) {
  sizes.time *= times;
  sizes.source *= times;
  return sizes;
}

std::string whole(double number) { return with_commas(static_cast<std::int64_t>(number)); }

namespace {

std::string mebibytes(double bytes) {
  return bytes < 1e5 ? whole(bytes) + " bytes" : fixed(bytes / (1 << 20), 2) + " MiB";
}

constexpr int kNameWidth = 26, kNumberWidth = 19;

void print_cells(const std::string& name, const std::vector<std::string>& numbers, const std::string& text) {
  std::cout << std::left << std::setw(kNameWidth) << name << std::right;
  for (const std::string& number : numbers) std::cout << std::setw(kNumberWidth) << number;
  if (!text.empty()) std::cout << "  " << text;
  std::cout << '\n';
}

std::string counted_text(const std::optional<double>& counted) { return counted ? whole(*counted) : "-"; }

void print_bytes(const CostOptions& options, const Measured& measured) {
  const auto moved = [](const OpTally& tally) {
    return mebibytes(tally.bytes_read) + " read, " + mebibytes(tally.bytes_written) + " written";
  };
  if (measured.training) {
    const OpTally forward = measured.training->counter.sum(Phase::forward),
                  backward = measured.training->counter.sum(Phase::backward);
    print_row("forward",
              moved(forward) + ", " + mebibytes(forward.bytes_kept) + " kept for the backward pass");
    print_row("backward", moved(backward) + ", " + mebibytes(backward.bytes_kept) + " of gradients kept, " +
                              whole(measured.training->counter.products(Phase::backward)) +
                              " operations in products");
    print_row("peak memory", mebibytes(measured.training->peak_bytes) + " with the backward pass, " +
                                 mebibytes(measured.forward[0]->peak_bytes) + " without");
  }
  if (options.model.has_attention()) {
    const PassSizes& s = options.sizes;
    const double entries = weights_entries(s.batch, options.model.heads, s.time, s.time);
    print_row("weights", "[" + std::to_string(s.batch) + ", " + std::to_string(options.model.heads) + ", " +
                             std::to_string(s.time) + ", " + std::to_string(s.time) + "] of one layer: " +
                             whole(entries) + " entries, " + mebibytes(2 * entries) + " at 2 bytes, " +
                             mebibytes(4 * entries) + " at 4; computed in tiles, never held");
  }
}

void print_growth(const CostOptions& options, const Measured& measured) {
  std::vector<std::string> heads, totals;
  std::array<std::vector<PartCost>, kGrowth.size()> parts;
  for (std::size_t i = 0; i < kGrowth.size(); ++i) {
    const PassSizes sizes = longer(options.sizes, kGrowth[i]);
    parts[i] = forward_cost(options.model, sizes);
    heads.push_back("T = " + with_commas(sizes.time));
    totals.push_back(counted_text(
        measured.forward[i] ? std::optional(measured.forward[i]->counter.forward_products()) : std::nullopt));
  }
  print_cells("growth", heads, "4T against T");
  for (std::size_t part = 0; part < parts[0].size(); ++part) {
    std::vector<std::string> numbers;
    for (const std::vector<PartCost>& at : parts) numbers.push_back(whole(at[part].masked));
    const double ratio = parts.back()[part].masked / std::max(parts[0][part].masked, 1.0);
    print_cells(parts[0][part].part, numbers, fixed(ratio, 1) + " times");
  }
  const double all = operations_of(parts.back()) / operations_of(parts[0]);
  print_cells("all, counted", totals, fixed(all, 1) + " times");
}

void print_rows(const std::string& title, const std::vector<CostRow>& rows) {
  std::cout << '\n';
  print_cells(title, {"by formula", "counted"}, "difference");
  for (const CostRow& row : rows)
    print_cells(row.name, {whole(row.formula), counted_text(row.counted)}, row.difference);
}

nlohmann::json as_json(const OpTally& tally) {
  return {{"operations", std::llround(tally.operations)},
          {"bytes_read", std::llround(tally.bytes_read)},
          {"bytes_written", std::llround(tally.bytes_written)},
          {"bytes_kept", std::llround(tally.bytes_kept)}};
}

nlohmann::json as_json(const CostRow& row) {
  nlohmann::json object{
      {"name", row.name}, {"formula", std::llround(row.formula)}, {"difference", row.difference}};
  object["counted"] = row.counted ? nlohmann::json(std::llround(*row.counted)) : nlohmann::json();
  return object;
}

}  // namespace

void print_cost(const CostReport& report) {
  const auto& [options, measured, parts, decoding] = report;
  const ModelConfig& model = options.model;
  print_row("model", name_of_choice(model.kind) + ", " + std::to_string(model.layers) + " layers, width " +
                         std::to_string(model.width) + ", " + with_commas(model.parameter_count()) +
                         " parameters");
  print_row("pass",
            "batch " + std::to_string(options.sizes.batch) + ", " + with_commas(options.sizes.time) +
                " positions" +
                (options.sizes.source > 0 ? ", a source of " + with_commas(options.sizes.source) : "") +
                (measured.forward[0] ? "" : "; too large to run here, so nothing is counted"));
  print_rows("operations", parts);
  std::cout << '\n';
  print_growth(options, measured);
  std::cout << '\n';
  print_bytes(options, measured);
  if (!decoding.empty()) print_rows("new tokens: " + with_commas(options.new_tokens), decoding);
}

void print_cost_json(const CostReport& report) {
  const auto& [options, measured, parts, decoding] = report;
  nlohmann::json object{{"model", options.model},
                        {"parameters", options.model.parameter_count()},
                        {"batch", options.sizes.batch},
                        {"time", options.sizes.time},
                        {"source", options.sizes.source},
                        {"new_tokens", options.new_tokens},
                        {"parts", nlohmann::json::array()},
                        {"growth", nlohmann::json::array()},
                        {"decoding", nlohmann::json::array()}};
  for (const CostRow& row : parts) object["parts"].push_back(as_json(row));
  for (const CostRow& row : decoding) object["decoding"].push_back(as_json(row));
  for (std::size_t i = 0; i < kGrowth.size(); ++i) {
    const PassSizes sizes = longer(options.sizes, kGrowth[i]);
    nlohmann::json at{{"time", sizes.time},
                      {"formula", std::llround(operations_of(forward_cost(options.model, sizes)))}};
    if (measured.forward[i]) {
      at["counted"] = std::llround(measured.forward[i]->counter.forward_products());
      at["peak_bytes"] = std::llround(measured.forward[i]->peak_bytes);
    }
    object["growth"].push_back(at);
  }
  if (measured.training) {
    object["forward"] = as_json(measured.training->counter.sum(Phase::forward));
    object["backward"] = as_json(measured.training->counter.sum(Phase::backward));
    object["peak_bytes"] = std::llround(measured.training->peak_bytes);
  }
  if (options.model.has_attention()) {
    const PassSizes& sizes = options.sizes;
    object["weights_entries"] =
        std::llround(weights_entries(sizes.batch, options.model.heads, sizes.time, sizes.time));
  }
  print_json(object);
}

}  // namespace needle
