// Published checkpoints: GPT-2's and Llama's, as they lie (S47), with known logits and continuations; what
// does not fit is told.
#include "needle/models/published.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "needle/io/checkpoint.h"
#include "needle/io/files.h"
#include "needle/models/model.h"
#include "tests/agree.h"
#include "tests/on_devices.h"
#include "tests/published_folder.h"
#include "tests/reference_file.h"
#include "tests/temporary_folder.h"

namespace needle {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::unique_ptr<SequenceModel> load(const fs::path& folder, Device device = cpu()) {
  const PublishedConfig config = read_published_config(folder);
  Generator unused(0);
  std::unique_ptr<SequenceModel> model = make_model(config.model, unused, device);
  load_published(folder, config.names, *model);
  return model;
}

/// The tensors of a file, to be changed and written again.
std::vector<Parameter> tensors_of(const fs::path& path) {
  const SafetensorsFile file(path);
  std::vector<Parameter> tensors;
  for (const std::string& name : file.names())
    tensors.push_back({name, Tensor(array_of(file.tensor(name))), true, {}});
  return tensors;
}

void change_config(const fs::path& folder, const std::string& name, const json& value) {
  json config = parse_json(read_file(folder / kConfigFile), "config");
  config[name] = value;
  write_file_synced(folder / kConfigFile, config.dump());
}

std::vector<std::vector<float>> numbers_of(SequenceModel& model) {
  std::vector<std::vector<float>> all;
  for (const Parameter& parameter : model.parameters())
    all.push_back(parameter.tensor.array().to_vector<float>());
  return all;
}

class PublishedTest : public testing::TestWithParam<std::tuple<Device, std::string>> {
 protected:
  Device device() const { return std::get<0>(GetParam()); }
  std::string name() const { return std::get<1>(GetParam()); }
  const PublishedFolder folder_{name()};
};

TEST_P(PublishedTest, S47_LogitsAndGreedyTokens) {
  const ReferenceFile known(name() + "_expected", device());
  const std::unique_ptr<SequenceModel> model = load(folder_.path(), device());
  EXPECT_EQ(model->parameter_count(), model->config().parameter_count());
  EXPECT_TRUE(agrees(model->forward({known.stored("inputs"), {}, {}}).array(), known.stored("logits"), 1e-5));
  const std::vector<std::int64_t> all = known.stored("greedy").to_vector<std::int64_t>();
  const std::vector<std::int64_t> prompt(all.begin(), all.begin() + 5);
  std::vector<std::int64_t> row(prompt);
  while (row.size() < all.size()) {
    const NDArray logits =
        model->forward({NDArray::from(row, {1, std::ssize(row)}, device()), {}, {}}).array();
    row.push_back(argmax(logits).to_vector<std::int64_t>().back());
  }
  EXPECT_EQ(row, all);
}

TEST_P(PublishedTest, ExportedAgainItIsTheSameToTheBit) {
  const std::unique_ptr<SequenceModel> model = load(folder_.path(), device());
  const TemporaryFolder exported;
  save_published(exported.path(), *model, Tokenizer::ids(model->vocabulary_size(), "none"));
  EXPECT_EQ(numbers_of(*load(exported.path())), numbers_of(*model));
  const std::vector<Parameter> before = tensors_of(folder_ / kModelFile),
                               after = tensors_of(exported / kModelFile);
  ASSERT_EQ(after.size(), before.size());
  const SafetensorsFile file(exported / kModelFile);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  for (const Parameter& tensor : before) {
    ASSERT_TRUE(file.contains(tensor.name)) << tensor.name;
    EXPECT_EQ(array_of(file.tensor(tensor.name)).to_vector<float>(),
              tensor.tensor.array().to_vector<float>());
  }
}

std::string row_name(const testing::TestParamInfo<PublishedTest::ParamType>& info) {
  return test_name(std::get<1>(info.param) + " " + std::get<0>(info.param).name());
}

INSTANTIATE_TEST_SUITE_P(All, PublishedTest,
                         testing::Combine(testing::ValuesIn(all_devices()),
                                          testing::Values("gpt2_tiny", "llama_tiny")),
                         row_name);

TEST(Published, PrefixesBuffersShardsAndHalfPrecisionAreRead) {
  for (const std::string name : {"gpt2_tiny", "llama_tiny"}) {
    const PublishedFolder folder(name);
    const auto right = numbers_of(*load(folder.path()));
    std::vector<Parameter> tensors = tensors_of(folder / kModelFile);
    // With and without the prefix, and buffers whose type nobody has to know.
    const std::string prefix = "model.";
    for (Parameter& tensor : tensors)
      tensor.name = name == "gpt2_tiny" ? "transformer." + tensor.name : tensor.name.substr(prefix.size());
    const NDArray mask = NDArray::ones({1, 1, 2, 2}, DType::boolean);
    for (const char* buffer : {"transformer.h.0.attn.bias", "h.1.attn.masked_bias", "rotary_emb.inv_freq",
                               "model.layers.0.self_attn.rotary_emb.inv_freq"})
      tensors.push_back({buffer, Tensor(mask), true, {}});
    // The head that is tied, once more.
    tensors.push_back({"lm_head.weight", tensors[0].tensor, true, {}});
    for (const Parameter& tensor : tensors) {
      if (tensor.name.ends_with("wte.weight") || tensor.name.ends_with("embed_tokens.weight"))
        tensors.back().tensor = tensor.tensor;
    }
    save_tensors(folder / kModelFile, tensors);
    EXPECT_EQ(numbers_of(*load(folder.path())), right) << name;

    // Two shards; attention of one layer lies in both.
    fs::remove(folder / kModelFile);
    json map;
    std::vector<Parameter> halves[2];
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::string file = "model-0000" + std::to_string(i % 2) + ".safetensors";
      halves[i % 2].push_back(tensors[i]);
      map[tensors[i].name] = file;
    }
    save_tensors(folder / "model-00000.safetensors", halves[0]);
    save_tensors(folder / "model-00001.safetensors", halves[1]);
    write_file_synced(folder / "model.safetensors.index.json", json{{"weight_map", map}}.dump());
    EXPECT_EQ(numbers_of(*load(folder.path())), right) << name;
    fs::remove(folder / "model-00001.safetensors");
    EXPECT_TRUE(contains(message_of([&] { load(folder.path()); }), "model-00001.safetensors"));

    for (const DType dtype : {DType::f16, DType::bf16}) {
      std::vector<std::vector<float>> rounded;
      for (std::vector<float> numbers : right) {
        const auto count = std::ssize(numbers);
        rounded.push_back(NDArray::from(numbers, {count}).cast(dtype).cast(DType::f32).to_vector<float>());
      }
      std::vector<Parameter> half = tensors;
      for (Parameter& tensor : half) {
        if (tensor.tensor.dtype() == DType::f32) tensor.tensor = Tensor(tensor.tensor.array().cast(dtype));
      }
      save_tensors(folder / kModelFile, half);
      EXPECT_EQ(numbers_of(*load(folder.path())), rounded) << name;
    }
  }
}

TEST(Published, BuffersOfUnknownTypesAreLeftAside) {
  const PublishedFolder folder("gpt2_tiny");
  const auto right = numbers_of(*load(folder.path()));
  std::vector<Parameter> tensors = tensors_of(folder / kModelFile);
  tensors.push_back({"h.0.attn.bias", Tensor(NDArray::ones({4}, DType::boolean)), true, {}});
  save_tensors(folder / kModelFile, tensors);
  std::string bytes = read_file(folder / kModelFile);
  const std::size_t place = bytes.find("BOOL");
  ASSERT_NE(place, std::string::npos);
  bytes.replace(place, 4, "U888");
  write_file_synced(folder / kModelFile, bytes);
  EXPECT_EQ(numbers_of(*load(folder.path())), right);
}

TEST(Published, AHeadOfItsOwnComesBack) {
  for (const bool llama : {false, true}) {
    ModelConfig config = DecoderConfig::of_size(20, 8, 8, 2, 2);
    config.tied = false;
    if (llama) {
      config.norm = NormKind::rms, config.positions = Positions::rotary;
      config.activation = Activation::gated, config.bias = false;
      config.key_value_heads = 1;
    }
    Generator random(1);
    const std::unique_ptr<SequenceModel> model = make_model(config, random);
    const TemporaryFolder folder;
    save_published(folder.path(), *model, Tokenizer::ids(20, "none"));
    EXPECT_EQ(SafetensorsFile(folder / kModelFile).tensor("lm_head.weight").shape, (Shape{20, 8}));
    EXPECT_EQ(numbers_of(*load(folder.path())), numbers_of(*model));
    EXPECT_EQ(json(read_published_config(folder.path()).model), json(model->config()));
    EXPECT_TRUE(read_published_config(folder.path()).warnings.empty());
    for (Parameter parameter : model->parameters()) {
      if (parameter.name == "head.bias") parameter.tensor.set_array(NDArray::ones({20}));
    }
    if (!llama) {
      const TemporaryFolder other;
      EXPECT_TRUE(
          contains(message_of([&] { save_published(other.path(), *model, Tokenizer::ids(20, "none")); }),
                   "no place for head.bias"));
    }
  }
}

TEST(Published, FieldsThatChangeTheComputationAreErrors) {
  const std::vector<std::tuple<const char*, const char*, json, const char*>> cases{
      {"gpt2_tiny", "activation_function", "quick_gelu", "activation_function = \"quick_gelu\""},
      {"gpt2_tiny", "scale_attn_weights", false, "scale_attn_weights = false"},
      {"gpt2_tiny", "scale_attn_by_inverse_layer_idx", true, "scale_attn_by_inverse_layer_idx = true"},
      {"gpt2_tiny", "add_cross_attention", true, "add_cross_attention"},
      {"gpt2_tiny", "n_ctx", 16, "n_ctx = 16"},
      {"gpt2_tiny", "n_embd", nullptr, "n_embd is missing"},
      {"gpt2_tiny", "n_embd", "24", "n_embd has an impossible value: \"24\""},
      {"gpt2_tiny", "n_embd", 25, "not a multiple of 4 heads"},
      {"gpt2_tiny", "model_type", "bert", "model_type = \"bert\""},
      {"gpt2_tiny", "tie_word_embeddings", 1, "tie_word_embeddings has an impossible value: 1"},
      {"llama_tiny", "rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}}, "rope_scaling"},
      {"llama_tiny", "rope_parameters", {{"rope_type", "yarn"}}, "rope_parameters"},
      {"llama_tiny", "partial_rotary_factor", 0.5, "partial_rotary_factor = 0.5"},
      {"llama_tiny", "hidden_act", "gelu", "hidden_act = \"gelu\""},
      {"llama_tiny", "attention_bias", true, "attention_bias"},
      {"llama_tiny", "mlp_bias", true, "mlp_bias"},
      {"llama_tiny", "head_dim", 16, "head_dim = 16"},
      {"llama_tiny", "sliding_window", 8, "sliding_window = 8"},
      {"llama_tiny", "quantization_config", {{"bits", 4}}, "quantization_config"}};
  for (const auto& [name, field, value, part] : cases) {
    const PublishedFolder folder(name);
    change_config(folder.path(), field, value);
    EXPECT_TRUE(contains(message_of([&] { read_published_config(folder.path()); }), part));
  }
}

TEST(Published, FieldsThatChangeNothingAreReadOverAndUnknownOnesAreNamed) {
  for (const std::string name : {"gpt2_tiny", "llama_tiny"}) {
    const PublishedFolder folder(name);
    EXPECT_TRUE(read_published_config(folder.path()).warnings.empty());
    for (const char* field : {"torch_dtype", "use_cache", "attn_pdrop", "task_specific_params"})
      change_config(folder.path(), field, "x");
    change_config(folder.path(), "rope_scaling", nullptr);
    change_config(folder.path(), "eos_token_id", {7, 8});
    EXPECT_TRUE(name == "gpt2_tiny" || read_published_config(folder.path()).warnings.empty());
    EXPECT_EQ(read_published_config(folder.path()).end, 7);
    change_config(folder.path(), "bos_token_id", 61);
    EXPECT_EQ(read_published_config(folder.path()).begin, std::nullopt);
    EXPECT_TRUE(contains(read_published_config(folder.path()).warnings.back(), "the token 61 that begins"));
    change_config(folder.path(), "bos_token_id", 1);
    change_config(folder.path(), "embedding_multiplier", 12);
    const std::vector<std::string> warnings = read_published_config(folder.path()).warnings;
    ASSERT_FALSE(warnings.empty());
    EXPECT_TRUE(contains(warnings.front(), "\"embedding_multiplier\" is not known"));
  }
  const PublishedFolder folder("llama_tiny");
  change_config(folder.path(), "rope_theta", nullptr);
  change_config(folder.path(), "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 500.0}});
  EXPECT_EQ(read_published_config(folder.path()).model.rotary_base, 500);
}

TEST(Published, AllTensorsThatDoNotFitAreInOneErrorAndNothingChanges) {
  const PublishedFolder folder("llama_tiny");
  std::vector<Parameter> tensors = tensors_of(folder / kModelFile);
  const auto find = [&](const std::string& name) {
    return std::ranges::find(tensors, name, &Parameter::name);
  };
  find("model.layers.1.self_attn.k_proj.weight")->name = "model.layers.1.self_attn.x_proj.weight";
  find("model.norm.weight")->tensor = Tensor(NDArray::ones({31}));
  find("model.layers.2.mlp.up_proj.weight")->tensor = Tensor(NDArray::ones({40, 32}, DType::i64));
  tensors.push_back({"lm_head.weight", Tensor(NDArray::ones({53, 32})), true, {}});
  save_tensors(folder / kModelFile, tensors);
  const PublishedConfig config = read_published_config(folder.path());
  Generator random(1);
  const std::unique_ptr<SequenceModel> model = make_model(config.model, random);
  const auto before = numbers_of(*model);
  const std::string message = message_of([&] { load_published(folder.path(), config.names, *model); });
  for (const char* part :
       {"missing layers.1.self_attn.k_proj.weight [16, 32]",
        "unknown layers.1.self_attn.x_proj.weight [16, 32]", "norm.weight has shape [31], wanted [32]",
        "up_proj.weight has type i64", "lm_head.weight differs"})
    EXPECT_TRUE(contains(message, part));
  EXPECT_EQ(numbers_of(*model), before);
}

TEST(Published, WeightsThatAreNotThereAreTold) {
  const PublishedFolder folder("gpt2_tiny");
  fs::remove(folder / kModelFile);
  EXPECT_TRUE(contains(message_of([&] { load(folder.path()); }), "neither model.safetensors nor"));
  for (const char* map : {"{}", R"({"weight_map": {}})", R"({"weight_map": {"a": 1}})",
                          R"({"weight_map": {"a": "../model.safetensors"}})"}) {
    write_file_synced(folder / "model.safetensors.index.json", map);
    EXPECT_TRUE(contains(message_of([&] { load(folder.path()); }), "index.json: ")) << map;
  }
}

TEST(Published, SettingsWithoutAPlaceAreNamed) {
  ModelConfig config = DecoderConfig::of_size(20, 8, 8, 2, 2);
  config.positions = Positions::rotary;
  config.window = 3;
  const std::string message = message_of([&] { published_names_of(config.resolved()); });
  EXPECT_TRUE(contains(message, "GPT-2's names have no place for window 3, positions rotary;"));
  EXPECT_TRUE(contains(message, "Llama's have none for window 3, norm layer, activation gelu, bias"));
  config = DecoderConfig::of_size(20, 8, 8, 2, 2);
  config.soft_cap = 2.5, config.order = NormOrder::post, config.key_value_heads = 1;
  config.kind = ModelKind::encoder;
  EXPECT_TRUE(contains(message_of([&] { published_names_of(config.resolved()); }),
                       "model encoder, order post, soft-cap 2.5, key-value-heads 1;"));
}

}  // namespace
}  // namespace needle
