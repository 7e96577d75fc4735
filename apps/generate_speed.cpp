#include "apps/generate_speed.h"

#include <algorithm>
#include <iostream>
#include <string_view>

#include "apps/terminal.h"

namespace needle {

namespace {

void row(std::string_view label, const std::string& text) {
  std::cerr << label << std::string(15 - label.size(), ' ') << text << '\n';
}

std::string rate(std::int64_t tokens, double seconds) {
  return with_commas(static_cast<std::int64_t>(static_cast<double>(tokens) / std::max(seconds, 1e-9))) +
         " tokens/s";
}

}  // namespace

void GenerationSpeed::AttentionOperations::after(const OpEvent& event) {
  if (std::string_view(event.op) == "attention" && event.path.find(".cross") == std::string::npos)
    operations += tally_of(event).operations;
}

void GenerationSpeed::note_pass(const Decoding& batch) {
  const double seconds = now() - pass_started_;
  if (is_decoding_) {
    decode_seconds_ += seconds;
    decoded_tokens_ += std::ssize(batch.rows());
    ++passes_;
    decoding_operations_ += attention_.operations;
  } else {
    prompt_seconds_ += seconds;
    for (const TokenRow& tokens : batch.rows()) prompt_tokens_ += std::ssize(tokens);
    if (batch.cache_bytes() > cache_bytes_) {
      cache_bytes_ = batch.cache_bytes();
      cache_rows_ = std::ssize(batch.rows());
      cache_positions_ = batch.cache_longest();
    }
  }
  attention_.operations = 0;
  was_rebuilt_ = was_rebuilt_ || batch.rebuilds() > 1;
  is_decoding_ = true;
  pass_started_ = now();
}

void GenerationSpeed::count(std::size_t prompt, std::size_t new_tokens) {
  const double steps = std::max(0.0, static_cast<double>(new_tokens) - 1);
  pairs_by_formula_ += steps * static_cast<double>(prompt) + steps * (steps + 1) / 2;
}

void GenerationSpeed::tell() const {
  std::cerr << '\n';
  row("prompt", with_commas(prompt_tokens_) + " tokens in " + fixed(1e3 * prompt_seconds_, 1) + " ms, " +
                    rate(prompt_tokens_, prompt_seconds_));
  if (first_token_) row("first token", "after " + fixed(1e3 * *first_token_, 1) + " ms");
  if (passes_ > 0) {
    row("decoding", with_commas(decoded_tokens_) + " tokens in " + fixed(decode_seconds_, 2) + " s, " +
                        rate(decoded_tokens_, decode_seconds_) + ", " +
                        fixed(1e3 * decode_seconds_ / static_cast<double>(passes_), 2) + " ms a pass");
  }
  if (!settings_.cache) return row("cache", "none");
  const std::string bytes = with_commas(static_cast<std::int64_t>(cache_bytes_)) + " bytes";
  if (model_.kind != ModelKind::decoder)
    return row("state", bytes + " for " + with_commas(cache_rows_) + " rows");
  const auto size = static_cast<std::int64_t>(size_of(settings_.storage.value_or(DType::f32)));
  const std::int64_t width = model_.width / model_.heads;
  std::string factors = "2";
  std::int64_t product = 2;
  const auto times = [&](std::int64_t factor, const char* unit) {
    factors += " x " + with_commas(factor) + unit;
    product *= factor;
  };
  times(cache_rows_, " rows");
  times(model_.layers, " layers");
  times(cache_positions_, " positions");
  times(model_.key_value_heads, " heads");
  times(width, " numbers");
  times(size, " bytes");
  row("cache", bytes + "; " + factors + " = " + with_commas(product));
  if (was_rebuilt_ || model_.window > 0) return;  // the formula counts neither
  const double of_one_layer = decoding_operations_ / (4 * static_cast<double>(width)) /
                              static_cast<double>(model_.layers * model_.heads);
  row("pairs", with_commas(static_cast<std::int64_t>(of_one_layer)) +
                   " a layer and head counted; GP + G(G+1)/2 = " +
                   with_commas(static_cast<std::int64_t>(pairs_by_formula_)));
}

}  // namespace needle
