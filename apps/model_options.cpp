#include "apps/model_options.h"

namespace needle {

void add_model_options(CLI::App& command, ModelConfig& model) {
  const auto value = [&](const char* name, auto& target, const char* help) {
    return add_value(command, name, target, help)->group("Model");
  };
  const auto choice = [&](const char* name, auto& target, const char* help) {
    add_choice(command, name, target, help)->group("Model");
  };
  choice("--model", model.kind, "Kind of model");
  value("--layers", model.layers, "Blocks, or layers");
  value("--width", model.width, "Width of the residual stream");
  value("--heads", model.heads, "Attention heads");
  value("--key-value-heads", model.key_value_heads,
        "Key/value heads, each serving an equal run of heads; 0: as many as heads");
  value("--context", model.context, "Most positions that are read");
  value("--ffn", model.ffn, "Inner width of the feed-forward layers; 0: 4 times the width");
  choice("--activation", model.activation, "Of the feed-forward layers");
  value("--dropout", model.dropout, "Chance to drop an element");
  command.add_flag("--tied,!--no-tied", model.tied, "Use the token table as the head, too")
      ->default_str("true")
      ->group("Model");
  command.add_flag("--bias,!--no-bias", model.bias, "Give maps and norms a bias")
      ->default_str("true")
      ->group("Model");
  choice("--norm", model.norm, "Kind of norm");
  choice("--order", model.order, "Norms before the branches, or after the sums");
  choice("--positions", model.positions, "How positions are told");
  value("--rotary-base", model.rotary_base, "Base of rotary positions");
  value("--window", model.window, "Read only so many positions back, its own included; 0: all");
  value("--soft-cap", model.soft_cap, "Bend scores to stay within this; 0: no bending");
  choice("--initialisation", model.initialisation, "How weights begin");
  value("--kernel", model.kernel, "Positions that a convolution reads");
  std::string dilations;
  for (const std::int64_t dilation : model.dilations)
    dilations += (dilations.empty() ? "" : ",") + std::to_string(dilation);
  value("--dilations", model.dilations,
        "Steps between them, layer after layer: 1,2,4; over again where they end")
      ->delimiter(',')
      ->default_str(dilations);
}

}  // namespace needle
