// What generating took: time, cache and work, beside their formulas.
#pragma once

#include <optional>

#include "backends/clock.h"
#include "needle/counters.h"
#include "needle/generate/decoding.h"

namespace needle {

/// Adds up the passes of one or more batches.
class GenerationSpeed {
 public:
  /// Of a model whose config is resolved.
  GenerationSpeed(const ModelConfig& model, const DecodingSettings& settings)
      : model_(model), settings_(settings) {}

  /// Runs `generate`, one batch, and counts the operations of its attention.
  template <class Generate>
  auto watch(const Generate& generate) {
    const ObserverScope scope(&attention_);
    is_decoding_ = false;
    pass_started_ = now();
    return generate();
  }
  /// After a batch's prompts, and after each of its tokens, were read.
  void note_pass(const Decoding& batch);
  /// After a token was drawn.
  void note_token() {
    if (!first_token_) first_token_ = now() - started_;
  }
  /// A row of so many tokens that got so many new ones.
  void count(std::size_t prompt, std::size_t new_tokens);
  /// Prints all of it on stderr.
  void tell() const;

 private:
  /// The operations of a sequence's attention over itself.
  struct AttentionOperations final : Observer {
    double operations = 0;
    void after(const OpEvent& event) override;
  };

  ModelConfig model_;
  DecodingSettings settings_;
  AttentionOperations attention_;
  double started_ = now(), pass_started_ = 0, prompt_seconds_ = 0, decode_seconds_ = 0;
  std::optional<double> first_token_;
  std::int64_t prompt_tokens_ = 0, passes_ = 0, decoded_tokens_ = 0;
  std::size_t cache_bytes_ = 0;
  std::int64_t cache_rows_ = 0, cache_positions_ = 0;
  double decoding_operations_ = 0, pairs_by_formula_ = 0;
  bool is_decoding_ = false, was_rebuilt_ = false;
};

}  // namespace needle
