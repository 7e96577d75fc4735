#include "needle/models/published_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string_view>

#include "needle/io/files.h"
#include "needle/models/names_of_choices.h"

namespace needle {

namespace {

using nlohmann::json;

/// Fields that change nothing of what a trained model computes: of training, of other programs, or of tasks
/// beside the next token.
constexpr std::string_view kWithoutEffect[] = {"_attn_implementation",
                                               "_name_or_path",
                                               "architectures",
                                               "attention_dropout",
                                               "attn_pdrop",
                                               "auto_map",
                                               "chunk_size_feed_forward",
                                               "dtype",
                                               "embd_pdrop",
                                               "finetuning_task",
                                               "gradient_checkpointing",
                                               "id2label",
                                               "initializer_range",
                                               "is_decoder",
                                               "is_llama_config",
                                               "keys_to_ignore_at_inference",
                                               "label2id",
                                               "output_attentions",
                                               "output_hidden_states",
                                               "output_past",
                                               "pad_token_id",
                                               "predict_special_tokens",
                                               "pretraining_tp",
                                               "problem_type",
                                               "reorder_and_upcast_attn",
                                               "resid_pdrop",
                                               "return_dict",
                                               "summary_activation",
                                               "summary_first_dropout",
                                               "summary_proj_to_labels",
                                               "summary_type",
                                               "summary_use_proj",
                                               "task_specific_params",
                                               "torch_dtype",
                                               "torchscript",
                                               "transformers.js_config",
                                               "transformers_version",
                                               "unk_token_id",
                                               "use_cache",
                                               "use_return_dict"};

/// Activations by their published names; several spell the same function.
const ChoiceNames<Activation> kActivations{{"gelu_new", Activation::gelu_tanh},
                                           {"gelu_pytorch_tanh", Activation::gelu_tanh},
                                           {"gelu_fast", Activation::gelu_tanh},
                                           {"gelu", Activation::gelu},
                                           {"relu", Activation::relu}};

/// Reads fields one by one, and knows at the end which were left.
class Fields {
 public:
  Fields(const json& object, std::string file) : object_(object), file_(std::move(file)) {
    require(object.is_object(), file_, ": wants a JSON object");
  }

  /// The value of a field; `otherwise` where it is missing or null.
  template <class Value>
  Value value(const char* name, std::optional<Value> otherwise = std::nullopt) {
    const json* const found = find(name);
    if (found == nullptr) {
      require(otherwise.has_value(), file_, ": ", name, " is missing");
      return *otherwise;
    }
    const bool fits = std::is_same_v<Value, std::string> ? found->is_string()
                      : std::is_same_v<Value, bool>      ? found->is_boolean()
                      : std::is_integral_v<Value>        ? found->is_number_integer()
                                                         : found->is_number();
    require(fits, file_, ": ", name, " has an impossible value: ", shown(*found));
    return found->get<Value>();
  }

  /// A field that must be missing, null, or `wanted`: anything else changes what is computed.
  void fixed(const char* name, const json& wanted) {
    const json* const found = find(name);
    if (found != nullptr && *found != wanted) refuse(name, *found, wanted.dump());
  }
  [[noreturn]] void refuse(const char* name, const json& found, const std::string& wanted) const {
    fail(file_, ": ", name, " = ", shown(found), " is not computed here; known is ", wanted);
  }

  /// The field, or null where it is missing or null; it counts as read.
  const json* find(const char* name) {
    read_.insert(name);
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  /// An id, the first of a list of them.
  std::optional<std::int64_t> id(const char* name) {
    const json* found = find(name);
    if (found != nullptr && found->is_array() && !found->empty()) found = &found->front();
    if (found == nullptr) return std::nullopt;
    require(found->is_number_integer(), file_, ": ", name, " has an impossible value: ", shown(*found));
    return found->get<std::int64_t>();
  }

  std::vector<std::string> warnings() const {
    std::vector<std::string> result;
    for (const auto& [name, value] : object_.items()) {
      if (read_.contains(name) || std::ranges::find(kWithoutEffect, name) != std::end(kWithoutEffect))
        continue;
      result.push_back(file_ + ": the field " + json(name).dump() + " is not known, and left aside");
    }
    return result;
  }

 private:
  static std::string shown(const json& value) {
    return value.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 80);
  }

  const json& object_;
  std::string file_;
  std::set<std::string> read_;
};

using Whole = std::int64_t;

void read_gpt2(Fields& fields, ModelConfig& model) {
  model.width = fields.value<Whole>("n_embd");
  model.heads = fields.value<Whole>("n_head");
  model.layers = fields.value<Whole>("n_layer");
  model.ffn = fields.value<Whole>("n_inner", 0);
  const Whole shorter_name = fields.value<Whole>("n_ctx", 1024);
  model.context = fields.value<Whole>("n_positions", shorter_name);
  fields.fixed("n_ctx", model.context);
  model.norm_epsilon = fields.value<double>("layer_norm_epsilon", 1e-5);
  model.tied = fields.value<bool>("tie_word_embeddings", true);
  const std::string activation = fields.value<std::string>("activation_function", "gelu_new");
  const auto known = std::ranges::find(kActivations, activation, &decltype(kActivations)::value_type::first);
  if (known == kActivations.end())
    fields.refuse("activation_function", activation, "gelu_new, gelu_pytorch_tanh, gelu_fast, gelu and relu");
  model.activation = known->second;
  model.positions = Positions::learned;
  fields.fixed("scale_attn_weights", true);
  fields.fixed("scale_attn_by_inverse_layer_idx", false);
  fields.fixed("add_cross_attention", false);
}

/// The base of rotary positions, which newer files keep with their kind.
void read_rotary(Fields& fields, ModelConfig& model) {
  model.rotary_base = fields.value<double>("rope_theta", 10000);
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const json* const found = fields.find(name);
    if (found == nullptr) continue;
    if (!found->is_object()) fields.refuse(name, *found, "null");
    for (const auto& [key, value] : found->items()) {
      if (key == "rope_theta" && value.is_number())
        model.rotary_base = value.get<double>();
      else if ((key != "rope_type" && key != "type") || value != "default")
        fields.refuse(name, *found, "null, or the type \"default\"");
    }
  }
  fields.fixed("partial_rotary_factor", 1.0);
  fields.fixed("rope_interleaved", false);
}

void read_llama(Fields& fields, ModelConfig& model) {
  model.width = fields.value<Whole>("hidden_size");
  model.heads = fields.value<Whole>("num_attention_heads");
  model.key_value_heads = fields.value<Whole>("num_key_value_heads", model.heads);
  model.layers = fields.value<Whole>("num_hidden_layers");
  model.ffn = fields.value<Whole>("intermediate_size");
  model.context = fields.value<Whole>("max_position_embeddings", 2048);
  model.norm_epsilon = fields.value<double>("rms_norm_eps", 1e-6);
  model.tied = fields.value<bool>("tie_word_embeddings", false);
  model.norm = NormKind::rms;
  model.bias = false;
  model.activation = Activation::gated;
  model.positions = Positions::rotary;
  const std::string activation = fields.value<std::string>("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") fields.refuse("hidden_act", activation, "silu");
  if (model.heads > 0) fields.fixed("head_dim", model.width / model.heads);
  fields.fixed("attention_bias", false);
  fields.fixed("mlp_bias", false);
  fields.fixed("sliding_window", nullptr);
  read_rotary(fields, model);
}

/// The settings for which published names have no place.
struct Misfits {
  std::string text;
  void add_unless(bool fits, const std::string& setting) {
    if (!fits) text += (text.empty() ? "" : ", ") + setting;
  }
};

std::string misfits(const ModelConfig& model, PublishedNames names) {
  const bool llama = names == PublishedNames::llama;
  Misfits found;
  found.add_unless(model.kind == ModelKind::decoder, "model " + name_of_choice(model.kind));
  found.add_unless(model.order == NormOrder::pre, "order " + name_of_choice(model.order));
  found.add_unless(model.window == 0, "window " + std::to_string(model.window));
  std::ostringstream cap;
  cap << "soft-cap " << model.soft_cap;
  found.add_unless(model.soft_cap == 0, cap.str());
  found.add_unless(model.norm == (llama ? NormKind::rms : NormKind::layer),
                   "norm " + name_of_choice(model.norm));
  found.add_unless(model.positions == (llama ? Positions::rotary : Positions::learned),
                   "positions " + name_of_choice(model.positions));
  found.add_unless((model.activation == Activation::gated) == llama,
                   "activation " + name_of_choice(model.activation));
  found.add_unless(model.bias != llama, model.bias ? "bias" : "no-bias");
  found.add_unless(llama || model.key_value_heads == model.heads,
                   "key-value-heads " + std::to_string(model.key_value_heads));
  return found.text;
}

}  // namespace

bool is_published(const std::filesystem::path& folder) {
  return std::filesystem::exists(folder / kConfigFile);
}

PublishedConfig read_published_config(const std::filesystem::path& folder) {
  const std::string file = (folder / kConfigFile).string();
  const json object = parse_json(read_file(file), file);
  Fields fields(object, file);
  PublishedConfig result;
  const std::string type = fields.value<std::string>("model_type");
  if (type != "gpt2" && type != "llama") fields.refuse("model_type", type, "gpt2 and llama");
  result.names = type == "gpt2" ? PublishedNames::gpt2 : PublishedNames::llama;
  ModelConfig& model = result.model;
  model.vocabulary = fields.value<Whole>("vocab_size");
  if (result.names == PublishedNames::gpt2)
    read_gpt2(fields, model);
  else
    read_llama(fields, model);
  fields.fixed("is_encoder_decoder", false);
  fields.fixed("quantization_config", nullptr);
  result.begin = fields.id("bos_token_id");
  result.end = fields.id("eos_token_id");
  result.warnings = fields.warnings();
  for (auto* const id : {&result.begin, &result.end}) {
    if (!*id || (**id >= 0 && **id < model.vocabulary)) continue;
    result.warnings.push_back(file + ": the token " + std::to_string(**id) +
                              " that begins or ends a text is outside the vocabulary of " +
                              std::to_string(model.vocabulary) + ", and left aside");
    id->reset();
  }
  try {
    model = model.resolved();
  } catch (const Error& error) {
    fail(file, ": ", error.what());
  }
  return result;
}

PublishedNames published_names_of(const ModelConfig& model) {
  const std::string gpt2 = misfits(model, PublishedNames::gpt2),
                    llama = misfits(model, PublishedNames::llama);
  require(gpt2.empty() || llama.empty(), "export: GPT-2's names have no place for ", gpt2,
          "; Llama's have none for ", llama);
  return gpt2.empty() ? PublishedNames::gpt2 : PublishedNames::llama;
}

json published_config(const ModelConfig& model, std::optional<std::int64_t> begin,
                      std::optional<std::int64_t> end) {
  json object{{"vocab_size", model.vocabulary},
              {"tie_word_embeddings", model.tied},
              {"torch_dtype", "float32"},
              {"bos_token_id", nullptr},
              {"eos_token_id", nullptr}};
  if (begin) object["bos_token_id"] = *begin;
  if (end) object["eos_token_id"] = *end;
  if (published_names_of(model) == PublishedNames::gpt2) {
    const auto activation =
        std::ranges::find(kActivations, model.activation, &decltype(kActivations)::value_type::second);
    object.update({{"architectures", json::array({"GPT2LMHeadModel"})},
                   {"model_type", "gpt2"},
                   {"n_embd", model.width},
                   {"n_head", model.heads},
                   {"n_layer", model.layers},
                   {"n_inner", model.ffn},
                   {"n_positions", model.context},
                   {"n_ctx", model.context},
                   {"activation_function", activation->first},
                   {"layer_norm_epsilon", model.norm_epsilon}});
  } else {
    object.update({{"architectures", json::array({"LlamaForCausalLM"})},
                   {"model_type", "llama"},
                   {"hidden_size", model.width},
                   {"intermediate_size", model.ffn},
                   {"num_hidden_layers", model.layers},
                   {"num_attention_heads", model.heads},
                   {"num_key_value_heads", model.key_value_heads},
                   {"head_dim", model.width / model.heads},
                   {"max_position_embeddings", model.context},
                   {"rms_norm_eps", model.norm_epsilon},
                   {"rope_theta", model.rotary_base},
                   {"rope_scaling", nullptr},
                   {"hidden_act", "silu"},
                   {"attention_bias", false},
                   {"mlp_bias", false}});
  }
  return object;
}

}  // namespace needle
